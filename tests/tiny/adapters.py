"""Adapters as users have them: saved by peft, of tiny models, with effects far from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny.models import Family, tiny_model

peft = pytest.importorskip("peft")

LAYER = {"gpt_neox": "query_key_value", "gpt2": "c_attn", "llama": "q_proj"}
"""A linear layer of each family."""


def adapted_model(model: Any, *, seed: int = 1, **settings: Any) -> Any:
    """`model` with an adapter of peft whose numbers, unlike a fresh one's, change what it predicts."""
    wrapped: Any = peft.PeftModel(model, peft.LoraConfig(**{"r": 3, "lora_alpha": 5, **settings}))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad or "lora_" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return wrapped.eval()


def tiny_adapter(folder: Path, family: Family = "gpt_neox", *, seed: int = 1, **settings: Any) -> Any:
    """Save an adapter of `tiny_model(family)` in `folder`; returns peft's model of both."""
    wrapped = adapted_model(tiny_model(family), seed=seed, **{"target_modules": [LAYER[family]], **settings})
    wrapped.save_pretrained(str(folder))
    return wrapped
