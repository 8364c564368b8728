"""From `[model]` to a model: a preset or a config.json, freshly initialised, or a model_dir to train further.

The same seed gives the same weights, bit for bit: they are drawn on the CPU, from a generator that is put back as it
was. Among several ranks rank 0 alone draws or loads them, so how many there are has no influence either; what the
others build is never written to, and such memory costs nothing. Parameters are float32 whatever a config.json says, as
they are the masters that the optimizer moves; what a step computes in is the business of `[precision]`. A fresh model
gets the tokenizer's special tokens, so that model and tokenizer agree about them when they are exported together. What
does not fit is told before anything is allocated, from the model's shape alone: 0.03 s for `pythia-2.8b`, which takes
11 GB once it is made.
"""

from __future__ import annotations

import json
from typing import Any, cast

import torch
import xxhash
from transformers import GPTNeoXConfig, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.masked.model import MaskedLM, as_masked_lm, tokens_of
from pilekit.evaluate.model.causal import CausalLM, as_causal_lm, check_vocabulary, max_length_of
from pilekit.evaluate.model.load import (
    CAUSAL,
    MASKED,
    Kind,
    attention_of,
    check_folder,
    load_model,
    model_on_meta,
    quiet,
    read_config,
)
from pilekit.evaluate.model.logit_transform import LogitTransform
from pilekit.tokenize import Tokenizer
from pilekit.train.config import ModelConfig, Objective
from pilekit.train.model.presets import PRESETS

VOCABULARY_MULTIPLE = 128
"""GPT-NeoX rounds its embedding up to a multiple of this, which matrix units like: 50,277 ids have 50,304 rows."""

KINDS: dict[Objective, Kind] = {"clm": CAUSAL, "mlm": MASKED}


def build_on(
    ranks: Ranks, config: ModelConfig, tokenizer: Tokenizer, *, seq_len: int, seed: int, objective: Objective = "clm"
) -> CausalLM | MaskedLM:
    """`build_model` on rank 0, and on the others the same model without its numbers, for `Engine` to fill.

    What does not fit, all ranks raise. Only rank 0's can predict: what is to be found out about the model is for it.
    """
    built: list[CausalLM | MaskedLM] = []

    def build() -> bool | LogitTransform | None:
        built.append(lm := build_model(config, tokenizer, seq_len=seq_len, seed=seed, objective=objective))
        return lm.head_by_place if isinstance(lm, MaskedLM) else lm.transform

    finding = ranks.on_rank0(build)
    lm = ranks.on_all_ranks(
        lambda: built[0] if built else _unfilled(model_shape(config, tokenizer, seq_len, objective), objective, finding)
    )
    lm.model.train()
    return lm


def build_model(
    config: ModelConfig, tokenizer: Tokenizer, *, seq_len: int, seed: int, objective: Objective = "clm"
) -> CausalLM | MaskedLM:
    """The model that `config` names, float32, on the CPU and ready to train.

    A preset has as many positions as a row has tokens: positions that it never saw in training would be worthless. A
    config.json or a model_dir must have as many, and an embedding for every id; else a PilekitError names both numbers.
    """
    made, kind = model_shape(config, tokenizer, seq_len, objective).config, KINDS[objective]
    if config.path is not None:
        model = load_model(config.path, dtype=torch.float32, kind=kind)
    else:
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(seed)
            model = _from_config(made, kind)
    try:
        lm = as_causal_lm(model) if kind is CAUSAL else as_masked_lm(model)
    except PilekitError as error:
        given = config.preset or config.config or config.path or ""
        raise PilekitError(f"{visible(given)}: {error}") from error
    lm.model.train()
    return lm


def model_shape(
    config: ModelConfig, tokenizer: Tokenizer, seq_len: int, objective: Objective = "clm"
) -> PreTrainedModel:
    """The model that `build_model` will make, without its numbers: float32, on the meta device.

    PilekitError if ids or positions do not fit into it.
    """
    kind = KINDS[objective]
    if config.preset is not None:
        what, made = f'model.preset "{visible(config.preset, 60)}"', _preset(config.preset, tokenizer, seq_len)
    elif config.config is not None:
        what, made = f"model.config {visible(config.config)}", read_config(config.config, kind)
        _take_special_tokens(made, tokenizer)
    elif config.path is not None:
        check_folder(config.path)
        what, made = f"model.path {visible(config.path)}", read_config(config.path, kind)
    else:
        raise PilekitError("[model] names no model; give one of preset, config and path")
    model = model_on_meta(made, what, kind)
    if not hasattr(cast("Any", model).get_input_embeddings(), "num_embeddings"):
        raise PilekitError(f"{what}: a {type(model).__name__} has no embedding of tokens; it cannot be trained here")
    if cast("Any", model).get_output_embeddings() is None:
        raise PilekitError(f"{what}: a {type(model).__name__} has no language-model head; it cannot predict tokens")
    positions = max_length_of(model) if kind is CAUSAL else tokens_of(model)
    check_vocabulary(model, tokenizer, what)
    if positions is not None and positions < seq_len:
        raise PilekitError(
            f"{what}: has {positions:,} positions and data.seq_len is {seq_len:,}; set data.seq_len to {positions} or "
            "less"
        )
    return model


def count_parameters(config: ModelConfig, tokenizer: Tokenizer, *, seq_len: int) -> int:
    """How many parameters `build_model` will make, tied ones counted once; allocates none of them.

    What `build_model` says of a shape that does not fit, this says too.
    """
    return sum(parameter.numel() for parameter in model_shape(config, tokenizer, seq_len).parameters())


def fingerprint(model: PreTrainedModel) -> str:
    """XXH3 of the model's configuration, without what says nothing of its outputs (versions, names, stored type)."""
    passed_over = ("transformers_version", "architectures", "dtype", "torch_dtype")
    said = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in passed_over and not key.startswith("_")
    }
    digest: str = xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True, default=str).encode())
    return digest


def _from_config(made: PreTrainedConfig, kind: Kind) -> PreTrainedModel:
    attention = attention_of(made, kind)
    return cast(
        "PreTrainedModel",
        kind.auto.from_config(made, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False),
    )


def _unfilled(
    shape: PreTrainedModel, objective: Objective, finding: bool | LogitTransform | None
) -> CausalLM | MaskedLM:
    """The model of this shape with memory for its parameters that nobody has written to; `finding` is of its head."""
    with no_init_weights(), quiet():
        model: Any = _from_config(shape.config, KINDS[objective])
    model.tie_weights()
    if objective == "mlm":
        return MaskedLM(model, tokens_of(model), head_by_place=finding is True)
    return CausalLM(
        model=model,
        trunk=model.base_model,
        head=model.get_output_embeddings(),
        max_length=max_length_of(model),
        transform=finding if isinstance(finding, LogitTransform) else None,
    )


def _preset(name: str, tokenizer: Tokenizer, seq_len: int) -> PreTrainedConfig:
    """A Pythia model's configuration for this tokenizer and length of rows."""
    if name not in PRESETS:
        raise PilekitError(f'model.preset "{visible(name, 60)}" is none of {", ".join(PRESETS)}')
    shape = PRESETS[name]
    made = GPTNeoXConfig(
        vocab_size=-(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden_size,
        max_position_embeddings=seq_len,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        initializer_range=0.02,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        use_parallel_residual=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tie_word_embeddings=False,
    )
    _take_special_tokens(made, tokenizer)
    return made


def _take_special_tokens(made: PreTrainedConfig, tokenizer: Tokenizer) -> None:
    """Put the tokenizer's special tokens into a configuration, whose own belong to another tokenizer or to none."""
    text: Any = made.get_text_config()
    text.bos_token_id, text.eos_token_id, text.pad_token_id = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id
