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


def transforming_model(family: str, *, vocab_size: int = 320) -> Any:
    """A randomly initialised model of a family of `LOGIT_TRANSFORMS`, without dropout."""
    common = SMALL | {"vocab_size": vocab_size}
    config: Any = {
        "gemma2": Gemma2Config(**common, head_dim=8, final_logit_softcapping=2.0),
        "cohere": CohereConfig(**common, logit_scale=0.3),
        "granite": GraniteConfig(**common, attention_multiplier=8**-0.5, logits_scaling=0.7),
    }[family]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def transformed(transform: LogitTransform, logits: Tensor) -> Tensor:
    """The formula of `transform`, differentiable by autograd."""
    logits = logits * transform.times / transform.over
    return logits if transform.cap is None else transform.cap * torch.tanh(logits / transform.cap)
