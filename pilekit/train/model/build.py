"""Build the model that `[model]` names (shape.py), or copy one, with its weights.

The same seed gives the same weights bit for bit: they are drawn on the CPU, and torch's generator is restored. Only
rank 0 draws or loads them, so the number of ranks has no influence. The memory of the other ranks' models is never
written to and costs nothing. Parameters are float32 whatever a config.json says, because the optimizer updates them.

A model object is copied into a new model of its configuration, so the object's type, device and mode do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM, as_causal_lm
from pilekit.models.load import CAUSAL, MASKED, Kind, attention_of, load_model, quiet
from pilekit.models.logit_transform import LogitTransform
from pilekit.models.masked import MaskedLM, as_masked_lm, tokens_of
from pilekit.models.transformer_blocks import blocks_of
from pilekit.tokenize import Tokenizer
from pilekit.train.config.sections import LoraConfig, ModelConfig, Objective, TrainConfig
from pilekit.train.model import varlen  # noqa: F401 (registers "varlen")
from pilekit.train.model.attention import check_documents_apart
from pilekit.train.model.lora import add_adapters
from pilekit.train.model.shape import (
    KINDS,
    MODEL_OBJECT,
    NO_LORA,
    Source,
    adapt_and_freeze,
    as_model_config,
    kept_blocks,
    model_shape,
    model_shapes,
)
from pilekit.train.step.teacher import check_heads
from pilekit.workers.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # transformers 4 has it under another name


def build_models(
    config: TrainConfig, source: Source, tokenizer: Tokenizer, ranks: Ranks
) -> tuple[CausalLM | MaskedLM, CausalLM | MaskedLM | None]:
    """The model of `source`, and the teacher if there is one, on all ranks as `build_on` makes them.

    Raises PilekitError if they do not fit the config or each other, before weights are read where shapes show it.
    """
    ranks.on_rank0(lambda: bool(model_shapes(config, tokenizer, source)))
    objective, seq_len, seed = config.train.objective, config.data.seq_len, config.train.seed
    build = partial(build_model, tokenizer=tokenizer, seq_len=seq_len, seed=seed, objective=objective)
    lm = build_on(ranks, partial(build, source, lora=config.lora), config.lora)
    teacher = None
    if config.teacher.path is not None:
        teacher = build_on(ranks, partial(build, config.teacher))
        ranks.on_rank0(lambda: check_heads(lm, teacher))
    check_documents_apart([lm] if teacher is None else [lm, teacher], config, ranks)
    return lm, teacher


def build_on(ranks: Ranks, build: Callable[[], CausalLM | MaskedLM], lora: LoraConfig = NO_LORA) -> CausalLM | MaskedLM:
    """The model of `build` on rank 0, and the same model without weights on the other ranks, for `StepEngine` to fill.

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
            model = _from_config(config, MASKED if is_masked else CAUSAL)
        model.tie_weights()
        add_adapters(model, lora, seed=0, base=None)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        if is_masked:
            return MaskedLM(model, tokens_of(model), head_by_place=transform is not None)
        return CausalLM.from_model(model, transform)

    config, is_masked, frozen, transform = ranks.on_rank0(build_whole)  # only rank 0 can run it to find the transform
    return ranks.on_all_ranks(lambda: built[0] if built else build_empty())


def build_model(
    source: Source,
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    seed: int,
    objective: Objective = "clm",
    lora: LoraConfig = NO_LORA,
) -> CausalLM | MaskedLM:
    """The model of `source`, float32, on the CPU and ready to train, with the adapters of `lora`.

    A preset has as many positions as a row has tokens. Any other model needs enough positions for a row, and an
    embedding for every id; PilekitError names both numbers.
    """
    config, kind = model_shape(source, tokenizer, seq_len, objective, lora).config, KINDS[objective]
    source = as_model_config(source)
    if isinstance(source, ModelConfig) and source.path is not None and source.from_teacher is None:
        model = load_model(source.path, dtype=torch.float32, kind=kind, adapter=source.adapter)
    else:
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(seed)
            model = _from_config(config, kind)
    if not isinstance(source, ModelConfig):
        _copy_weights(source, model)
    elif source.path is not None and source.from_teacher is not None:
        copy_blocks(load_model(source.path, dtype=torch.float32, kind=kind, adapter=source.adapter), model)
    try:
        lm = as_causal_lm(model) if kind is CAUSAL else as_masked_lm(model)
    except PilekitError as error:
        names = (source.preset, source.config, source.path) if isinstance(source, ModelConfig) else (MODEL_OBJECT,)
        raise PilekitError(f"{next(filter(None, names), '')}: {error}") from error
    adapt_and_freeze(lm.model, source, lora, seed)
    lm.model.train()
    return lm


def _from_config(config: PreTrainedConfig, kind: Kind) -> PreTrainedModel:
    """A float32 model of this configuration, with fresh weights."""
    attention = attention_of(config, kind)
    model = kind.auto.from_config(config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False)
    return cast("PreTrainedModel", model)


def _copy_weights(source: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy the weights of `source` into `model`, which has the same parameters, and freeze the same parameters."""
    try:
        model.load_state_dict(source.state_dict())
    except RuntimeError as error:  # such as buffers of its own
        why = shortened(" ".join(str(error).split()), 300)
        raise PilekitError(f"{MODEL_OBJECT}: its weights cannot be copied: {why}") from error
    for name, parameter in source.named_parameters():
        model.get_parameter(name).requires_grad_(parameter.requires_grad)


def copy_blocks(teacher: nn.Module, student: nn.Module) -> None:
    """Copy the teacher's weights into `student`, a model of the configuration that `with_blocks` made.

    The teacher loses its other blocks, so that its names are the student's.
    """
    first, count = blocks_of(teacher)[0], len(blocks_of(student))
    blocks = next(module for module in teacher.modules() if isinstance(module, nn.ModuleList) and first in module)
    for number in sorted(set(range(len(blocks))) - set(kept_blocks(len(blocks), count)), reverse=True):
        del blocks[number]
    student.load_state_dict(teacher.state_dict())
