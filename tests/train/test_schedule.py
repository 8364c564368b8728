"""The learning rate against transformers' schedules, and where it begins and ends."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup

from pilekit.train.schedule import learning_rate


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.1 + 0.9 * (2 + 2**0.5) / 4, 0.55, 0.1 + 0.9 * (2 - 2**0.5) / 4]),
    ],
)
def test_all_rates_of_eight_steps(kind: Literal["constant", "cosine"], rates: list[float]) -> None:
    found = [learning_rate(step, steps=8, lr=1.0, kind=kind, warmup=4, min_lr=0.1) for step in range(8)]

    assert found == pytest.approx(rates)


@pytest.mark.parametrize(("steps", "warmup"), [(10, 0), (10, 3), (10, 9), (1, 0)])
def test_after_the_warmup_it_is_transformers_cosine(steps: int, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, steps)
    for step in range(steps + 1):
        if step >= warmup:
            found = learning_rate(step, steps=steps, lr=0.3, kind="cosine", warmup=warmup, min_lr=0.0)
            assert found == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


@given(
    steps=st.integers(1, 200),
    warmup_share=st.floats(0.0, 1.0),
    lr=st.floats(1e-6, 1.0),
    lowest_share=st.floats(0.0, 1.0),
    kind=st.sampled_from(["constant", "cosine"]),
)
def test_it_rises_to_the_highest_rate_and_then_never_again(
    steps: int, warmup_share: float, lr: float, lowest_share: float, kind: Literal["constant", "cosine"]
) -> None:
    warmup, min_lr = int(steps * warmup_share), lr * lowest_share
    rates = [learning_rate(step, steps=steps, lr=lr, kind=kind, warmup=warmup, min_lr=min_lr) for step in range(300)]

    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert all(rate > 0 for rate in rising)
    assert rates[warmup] == pytest.approx(lr)
    assert falling == sorted(falling, reverse=True)
    end = min_lr if kind == "cosine" else lr
    assert rates[steps + 1 :] == pytest.approx([end] * (299 - steps))
