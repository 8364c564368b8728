"""Build the model that `[model]` names (a preset or a config.json, freshly initialised, or a model_dir), or copy one.

The same seed gives the same weights bit for bit: they are drawn on the CPU, and torch's generator is restored. Only
rank 0 draws or loads them, so the number of ranks has no influence; the memory of the other ranks' models is never
written to and costs nothing. Parameters are float32 whatever a config.json says, because the optimizer updates them. A
fresh model gets the tokenizer's special tokens. Sizes that do not fit are refused before anything is allocated, from
the model's shape alone.

A model object is copied into a new model of its configuration, which must have the same parameters. So the exported
model loads as the one that was trained, and the object's type, device and mode do not matter.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import xxhash
from transformers import GPTNeoXConfig, PreTrainedModel, RobertaConfig

from pilekit.errors import PilekitError, shortened, visible
from pilekit.models.causal import CausalLM, as_causal_lm, check_vocabulary
from pilekit.models.folder import check_folder, few_positions
from pilekit.models.load import (
    CAUSAL,
    MASKED,
    Kind,
    adapted,
    attention_of,
    load_model,
    model_on_meta,
    positions_of,
    quiet,
    read_config,
)
from pilekit.models.logit_transform import LogitTransform
from pilekit.models.masked import MaskedLM, as_masked_lm, tokens_of
from pilekit.models.presets import MASKED_PRESETS, PRESETS
from pilekit.tokenize import Tokenizer
from pilekit.train.config.check import naming_field
from pilekit.train.config.sections import LoraConfig, ModelConfig, Objective, TrainConfig
from pilekit.train.model import varlen  # noqa: F401 (registers "varlen")
from pilekit.train.model.from_teacher import copy_blocks, with_blocks
from pilekit.train.model.lora import add_adapters
from pilekit.train.step.optimizer import lr_scales
from pilekit.train.step.teacher import check_teacher
from pilekit.workers.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # transformers 4 has it under another name

VOCABULARY_MULTIPLE = 128
"""GPT-NeoX rounds its embedding up to a multiple of this, which suits matrix units: 50,277 ids have 50,304 rows."""

Source = ModelConfig | PreTrainedModel
"""The source of a model: the section `[model]`, or a model object."""

_OBJECT = "the model object"
NO_LORA = LoraConfig()
_WHOLE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}

KINDS: dict[Objective, Kind] = {"clm": CAUSAL, "mlm": MASKED}


def build_on(ranks: Ranks, build: Callable[[], CausalLM | MaskedLM], lora: LoraConfig = NO_LORA) -> CausalLM | MaskedLM:
    """What `build` returns on rank 0, and the same model without weights on the other ranks, for `StepEngine` to fill.

    build   calls `build_model`, with the same `lora`

    All ranks raise the same errors.
    """
    built: list[CausalLM | MaskedLM] = []

    def build_whole() -> tuple[PreTrainedConfig, bool, set[str], LogitTransform | None]:
        built.append(lm := build())
        frozen = {name for name, parameter in lm.model.named_parameters() if not parameter.requires_grad}
        return lm.model.config, isinstance(lm, MaskedLM), frozen, lm.transform

    def build_empty() -> CausalLM | MaskedLM:
        from transformers.initialization import no_init_weights  # not in transformers 4

        with no_init_weights(), quiet():
            model = _from_config(made, MASKED if is_masked else CAUSAL)
        model.tie_weights()
        add_adapters(model, lora, seed=0, base=None)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        if is_masked:
            return MaskedLM(model, tokens_of(model), head_by_place=transform is not None)
        return CausalLM.of(model, transform)

    made, is_masked, frozen, transform = ranks.on_rank0(build_whole)  # only rank 0 can run it to find the transform
    return ranks.on_all_ranks(lambda: built[0] if built else build_empty())


def build_model(
    source: Source,
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    seed: int,
    objective: Objective = "clm",
    lora: LoraConfig = NO_LORA,
    field: str = "model.path",
) -> CausalLM | MaskedLM:
    """The model of `source`, float32, on the CPU and ready to train, with the adapters of `lora`.

    A preset has as many positions as a row has tokens. Any other model needs enough positions for a row, and an
    embedding for every id; PilekitError names both numbers.
    """
    made, kind = model_shape(source, tokenizer, seq_len, objective, lora, field).config, KINDS[objective]
    if isinstance(source, ModelConfig) and source.path is not None and source.from_teacher is None:
        model = load_model(source.path, dtype=torch.float32, kind=kind, adapter=source.adapter)
    else:
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(seed)
            model = _from_config(made, kind)
    if not isinstance(source, ModelConfig):
        _copy_weights(source, model)
    elif source.path is not None and source.from_teacher is not None:
        copy_blocks(load_model(source.path, dtype=torch.float32, kind=kind, adapter=source.adapter), model)
    try:
        lm = as_causal_lm(model) if kind is CAUSAL else as_masked_lm(model)
    except PilekitError as error:
        names = (source.preset, source.config, source.path) if isinstance(source, ModelConfig) else (_OBJECT,)
        raise PilekitError(f"{next(filter(None, names), '')}: {error}") from error
    _adapt_and_freeze(lm.model, source, lora, seed)
    lm.model.train()
    return lm


def model_shape(
    source: Source,
    tokenizer: Tokenizer,
    seq_len: int,
    objective: Objective = "clm",
    lora: LoraConfig = NO_LORA,
    field: str = "model.path",
) -> PreTrainedModel:
    """The model that `build_model` will make, without weights: float32, on the meta device.

    field   of the config that names the folder of `source`, for errors

    PilekitError if ids or positions do not fit into it, or if a model object does not match its configuration.
    """
    config, kind = source, KINDS[objective]
    if not isinstance(config, ModelConfig):
        what, made = _OBJECT, _configuration_of(config, kind)
    elif config.preset is not None:
        what, made = f'model.preset "{visible(config.preset, 60)}"', _preset(config.preset, tokenizer, seq_len)
    elif config.path is not None:
        field = field if config.from_teacher is None else "teacher.path"
        with naming_field(field):
            check_folder(config.path)
            what, made = visible(config.path), read_config(config.path, kind)
        if config.adapter is not None:
            with naming_field(field.replace("path", "adapter")):
                check_folder(config.path, config.adapter)
                adapted(model_on_meta(made, what, kind), config.adapter)
        if config.from_teacher is not None:
            made = with_blocks(made, config.from_teacher, what)
    else:
        what = f"model.config {visible(config.config or '')}"
        with naming_field("model.config"):
            made = _with_special_tokens(read_config(config.config or "", kind), tokenizer)
    model: Any = model_on_meta(made, what, kind)
    if isinstance(source, PreTrainedModel):
        _check_parameters(source, model, kind)
    if not hasattr(model.get_input_embeddings(), "num_embeddings"):
        raise PilekitError(f"{what}: a {type(model).__name__} has no embedding of tokens; it cannot be trained here")
    if model.get_output_embeddings() is None:
        raise PilekitError(f"{what}: a {type(model).__name__} has no language-model head; it cannot predict tokens")
    check_vocabulary(model, tokenizer, what)
    positions = positions_of(model.config) if kind is CAUSAL else tokens_of(model)
    if positions is not None and positions < seq_len:
        raise PilekitError(few_positions(what, positions, seq_len))
    _adapt_and_freeze(model, source, lora, 0)
    return model  # type: ignore[no-any-return]


def model_shapes(
    config: TrainConfig, tokenizer: Tokenizer, source: Source
) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """The model of `source`, and the teacher if there is one, without weights, as `model_shape` makes them.

    PilekitError also if they do not fit each other, or if a pattern of the optimizer matches no parameter.
    """
    shape = partial(model_shape, tokenizer=tokenizer, seq_len=config.data.seq_len, objective=config.train.objective)
    model = shape(source, lora=config.lora)
    lr_scales(model, config.optimizer)
    if config.teacher.path is None:
        return model, None
    teacher = shape(ModelConfig(path=config.teacher.path, adapter=config.teacher.adapter), field="teacher.path")
    check_teacher(teacher, model, config)
    return model, teacher


def use_attention(model: PreTrainedModel, implementation: str) -> None:
    """Make `model` compute attention in another way; PilekitError if it cannot."""
    try:
        with quiet():
            model.set_attn_implementation(implementation)
    except (ValueError, ImportError, RuntimeError) as error:
        raise PilekitError(
            f'model.attention_implementation = "{implementation}": a {shortened(model.config.model_type, 60)} model '
            f'cannot use it ({shortened(" ".join(str(error).split()), 200)}); set "sdpa"'
        ) from error


def fingerprint(model: PreTrainedModel) -> str:
    """XXH3 of the model's configuration, without fields that do not affect outputs (versions, names, stored type)."""
    ignored = ("transformers_version", "architectures", "dtype", "torch_dtype")
    fields = {
        key: value for key, value in model.config.to_dict().items() if key not in ignored and not key.startswith("_")
    }
    digest: str = xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True, default=str).encode())
    return digest


def _configuration_of(given: object, kind: Kind) -> PreTrainedConfig:
    """A copy of the configuration of a model object."""
    if not isinstance(given, PreTrainedModel):
        raise PilekitError(f"{_OBJECT}: a {type(given).__name__} is not a model of transformers; give one")
    if given.config.model_type not in kind.types or given.config.is_encoder_decoder:
        raise PilekitError(f"{_OBJECT}: a {type(given).__name__} is not a {kind.name}; give one")
    return deepcopy(given.config)


def _check_parameters(given: PreTrainedModel, made: PreTrainedModel, kind: Kind) -> None:
    """Raise PilekitError unless `given` has weights for the parameters of `made`, which its configuration makes."""
    if type(given) is not type(made):
        names = f"a {type(made).__name__}, not a {type(given).__name__}"
        raise PilekitError(f"{_OBJECT}: as a {kind.name} its configuration makes {names}; give that")
    if getattr(given.config, "quantization_config", None) or {p.dtype for p in given.parameters()} - _WHOLE:
        raise PilekitError(f"{_OBJECT}: quantised weights are not supported; give it in fp32, bf16 or fp16")
    if any(parameter.is_meta for parameter in given.parameters()):
        raise PilekitError(f"{_OBJECT}: is on the meta device, without numbers; give one that has its weights")
    found, expected = ({n: list(p.shape) for n, p in model.named_parameters()} for model in (given, made))
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            of, to = (f"{shapes.get(name, 'none of its own')}" for shapes in (found, expected))
            raise PilekitError(
                f"{_OBJECT}: its parameter {shortened(name, 120)} is {of}, but its configuration makes {to}; change "
                "the configuration, so that others can load the trained model"
            )
    if not any(parameter.requires_grad for parameter in given.parameters()):
        raise PilekitError(f"{_OBJECT}: all parameters are frozen; set requires_grad of those to be trained")


def _copy_weights(given: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy the weights of `given` into `model`, which has the same parameters, and freeze the same parameters."""
    try:
        model.load_state_dict(given.state_dict())
    except RuntimeError as error:  # such as buffers of its own
        why = visible(" ".join(str(error).split()), 300)
        raise PilekitError(f"{_OBJECT}: its weights cannot be copied: {why}") from error
    for name, parameter in given.named_parameters():
        model.get_parameter(name).requires_grad_(parameter.requires_grad)


def _adapt_and_freeze(model: PreTrainedModel, source: Source, lora: LoraConfig, seed: int) -> None:
    """Add the adapters of `lora`, and freeze the parameters that `[model]` freezes.

    PilekitError for a pattern without a match, or if no parameter is left to train.
    """
    base = source.path if isinstance(source, ModelConfig) else source.name_or_path
    add_adapters(model, lora, seed=seed, base=base)
    names = [name for name, _ in model.named_parameters()]
    for pattern in (isinstance(source, ModelConfig) and source.freeze) or ():
        if not (matching := fnmatch.filter(names, pattern)):
            raise PilekitError(
                f'model.freeze: "{shortened(pattern, 100)}" matches no parameter; names are such as '
                f'"{shortened(names[0], 100)}", and * stands for anything'
            )
        for name in matching:
            model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PilekitError("model.freeze: all parameters are frozen; leave out a pattern")


def _from_config(made: PreTrainedConfig, kind: Kind) -> PreTrainedModel:
    """A float32 model of this configuration, with fresh weights."""
    attention = attention_of(made, kind)
    model = kind.auto.from_config(made, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False)
    return cast("PreTrainedModel", model)


def _preset(name: str, tokenizer: Tokenizer, seq_len: int) -> PreTrainedConfig:
    """The configuration of a preset for this tokenizer and, if it is a Pythia, for this row length."""
    width, blocks, heads = PRESETS[name]
    if name in MASKED_PRESETS:
        masked = RobertaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        )
        return _with_special_tokens(masked, tokenizer)
    made = GPTNeoXConfig(
        vocab_size=-(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        intermediate_size=4 * width,
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
    return _with_special_tokens(made, tokenizer)


def _with_special_tokens(made: PreTrainedConfig, tokenizer: Tokenizer) -> PreTrainedConfig:
    """The configuration with the special tokens of this tokenizer instead of its own."""
    text: Any = made.get_text_config()
    text.bos_token_id, text.eos_token_id, text.pad_token_id = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id
    return made
