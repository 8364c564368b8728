"""The learning rate against transformers' schedules, and where it begins and ends."""

from __future__ import annotations

import itertools
from typing import Any, get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_scheduler

from pilekit.train.config.sections import ScheduleConfig
from pilekit.train.step.schedule import decay_steps, learning_rate

KINDS = get_args(get_type_hints(ScheduleConfig)["kind"])


def test_after_the_warmup_it_is_transformers() -> None:
    for kind in ("linear", "cosine", "polynomial", "wsd"):
        for steps, warmup in ((10, 0), (10, 7), (1, 0), (200, 13)):
            check_against_transformers(kind, steps, warmup)


def check_against_transformers(kind: Any, steps: int, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    given: dict[str, dict[str, Any]] = {
        "polynomial": {"lr_end": 0.03, "power": 3.0},
        "wsd": {"num_decay_steps": decay_steps(steps, 0.3), "decay_type": "linear", "min_lr_ratio": 0.1},
    }
    name = "warmup_stable_decay" if kind == "wsd" else kind
    schedule = get_scheduler(name, optimizer, warmup, steps, given.get(kind))
    settings = ScheduleConfig(
        kind=kind, warmup=warmup, min_lr=0.03 if kind in ("polynomial", "wsd") else 0.0, power=3.0, decay_share=0.3
    )
    for step in range(steps + 1):
        if step >= warmup:
            found = learning_rate(step, steps=steps, lr=0.3, schedule=settings)
            assert found == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


@given(
    steps=st.integers(1, 200),
    warmup_share=st.floats(0.0, 1.0),
    lr=st.floats(1e-6, 1.0),
    lowest_share=st.floats(1e-6, 1.0),
    kind=st.sampled_from(KINDS),
    power=st.floats(0.1, 10.0),
    decay_share=st.floats(0.01, 1.0),
)
def test_it_rises_to_the_highest_rate_and_then_only_falls(
    steps: int, warmup_share: float, lr: float, lowest_share: float, kind: Any, power: float, decay_share: float
) -> None:
    most = steps - (decay_steps(steps, decay_share) if kind == "wsd" else 0)
    warmup, min_lr = int(most * warmup_share), lr * lowest_share
    schedule = ScheduleConfig(kind=kind, warmup=warmup, min_lr=min_lr, power=power, decay_share=decay_share)
    rates = [learning_rate(step, steps=steps, lr=lr, schedule=schedule) for step in range(300)]

    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == pytest.approx([lr * (step + 1) / warmup for step in range(warmup)])
    if warmup < steps:
        assert falling[0] == pytest.approx(lr)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(falling))
    end = min_lr if kind != "constant" else lr
    assert rates[steps + 1 :] == pytest.approx([end] * (299 - steps))
