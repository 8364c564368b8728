"""The transform of logits after the head: its formula, its gradient, and how it is recognised."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from pilekit.evaluate.model.logit_transform import UNCHANGED, LogitTransform, logit_transform_of
from tests.logit_transforms import transformed

NUMBERS = st.floats(0.05, 60.0)
ANY_TRANSFORM = st.builds(LogitTransform, times=NUMBERS, over=NUMBERS, cap=st.none() | NUMBERS)
LOGITS = torch.linspace(-90.0, 90.0, 1001)


def config(**numbers: Any) -> PreTrainedConfig:
    made: PreTrainedConfig = LlamaConfig()
    for name, value in numbers.items():
        setattr(made, name, value)
    return made


def found(numbers: dict[str, Any], *logits: Tensor) -> LogitTransform | None:
    return logit_transform_of(config(**numbers), [(LOGITS.to(made.dtype), made) for made in logits])


@given(ANY_TRANSFORM)
def test_a_transform_is_its_formula_and_its_gradient_is_autograds(transform: LogitTransform) -> None:
    logits = LOGITS.double().requires_grad_()
    grad = torch.cos(LOGITS.double())
    made = transformed(transform, logits)
    torch.testing.assert_close(transform(logits.detach()), made.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(logits, LOGITS.double())
    (right,) = torch.autograd.grad(made, logits, grad)
    back = transform.backward_(grad.clone(), transform(logits.detach()))
    # Near the cap, the slope is nothing but the rounding of a difference.
    atol = 1e-14 * transform.times / transform.over
    torch.testing.assert_close(back, right, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_and_not_names_tell_the_transform(dtype: torch.dtype) -> None:
    """Models use the same name for different operations."""
    logits = LOGITS.to(dtype)
    named = {"logits_scaling": 7.0, "final_logit_softcapping": 11.0}
    capped = torch.tanh(logits / 11.0) * 11.0
    assert found(named, logits) == UNCHANGED
    assert found(named, logits / 7.0) == LogitTransform(over=7.0)
    assert found(named, logits * 7.0) == LogitTransform(times=7.0)
    assert found(named, capped) == LogitTransform(cap=11.0)
    assert found(named, torch.tanh(logits * 7.0 / 11.0) * 11.0) == LogitTransform(times=7.0, cap=11.0)
    assert found(named, capped * 7.0) is None
    assert found(named, logits.clamp(-11.0, 11.0)) is None
    assert found(named, logits + 1) is None
    assert found({}, capped) is None


def test_a_transform_must_explain_every_number() -> None:
    named = {"logit_scale": 0.5}
    assert found(named, LOGITS * 0.5, LOGITS * 0.5) == LogitTransform(times=0.5)
    assert found(named, LOGITS * 0.5, LOGITS) is None
    other = (LOGITS * 0.5).clone()
    other[500] += 1e-6
    assert found(named, other) is None
    assert found(named, LOGITS[:-1] * 0.5) is None


def test_a_value_that_cannot_divide_is_no_candidate() -> None:
    for value in (0, 0.0, None, math.nan, math.inf, "30", [30.0], {}):
        named = {"logit_scale": value, "logits_scaling": value, "final_logit_softcapping": value}
        assert found(named, LOGITS) == UNCHANGED
        assert found(named, LOGITS * 0.5) is None
