"""Tiny models that transform their logits after the head, with transforms large enough to matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig

from pilekit.models.logit_transform import LogitTransform
from tests.tiny.models import SMALL

LOGIT_TRANSFORMS = {
    "gemma2": LogitTransform(cap=2.0),
    "cohere": LogitTransform(times=0.3),
    "granite": LogitTransform(over=0.7),
}


def finishing_config(family: str, *, vocab_size: int = 320) -> Any:
    """The configuration of a family of `LOGIT_TRANSFORMS`."""
    common = SMALL | {"vocab_size": vocab_size}
    if family == "gemma2":
        return Gemma2Config(**common, head_dim=8, final_logit_softcapping=2.0)
    if family == "cohere":
        return CohereConfig(**common, logit_scale=0.3)
    assert family == "granite"
    return GraniteConfig(**common, attention_multiplier=8**-0.5, logits_scaling=0.7)


def transforming_model(family: str, *, vocab_size: int = 320) -> Any:
    """A randomly initialised model of a family of `LOGIT_TRANSFORMS`, without dropout."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(finishing_config(family, vocab_size=vocab_size)).eval()


def transformed(transform: LogitTransform, logits: Tensor) -> Tensor:
    """The formula of `transform`, differentiable by autograd."""
    logits = logits * transform.times / transform.over
    return logits if transform.cap is None else transform.cap * torch.tanh(logits / transform.cap)
