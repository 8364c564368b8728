"""Warnings equal those of a slow reference that looks at the whole run, also of memory that grows and grows."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pilekit.evaluate.score_ranks import single_rank
from pilekit.train.log.alerts import LEAST, SHARE, SPAN, SPANS, MemoryGrowth, Watch
from pilekit.train.log.logs import open_logs
from pilekit.train.log.metrics import StepMetrics, read_metrics
from pilekit.train.run_folder import RunFolder
from tests.train.log.test_metrics import metrics
from tests.train.runs import small_config, warnings_of


def step_of(step: int, *, loss: float | None = 3.0, wait: float = 0.0, seconds: float = 1.0) -> StepMetrics:
    return metrics(step, loss=loss, data_wait=wait, step_seconds=seconds)


def watched(steps: list[StepMetrics], history: list[StepMetrics] | None = None) -> list[tuple[int, str]]:
    """(step, message) of every warning."""
    found: list[tuple[int, str]] = []
    watch = Watch(lambda step: f"PEEK {step}", "REMEDY", history or [])
    with warnings_of() as warnings:
        for step in steps:
            watch.write(step)
            found += [(step.step, record.getMessage()) for record in warnings]
            warnings.clear()
    return found


# ---- slow references


def divergences(losses: list[float | None]) -> list[int]:
    """Steps (from 1) at which the mean of 50 losses has been far above the lowest before it for the 50th time."""
    seen: list[float] = []
    means: list[float] = []
    above: list[bool] = []
    found = []
    for step, loss in enumerate(losses, 1):
        if loss is None:
            continue
        seen.append(loss)
        if len(seen) >= 50:
            mean = sum(seen[-50:]) / 50
            lowest = min(means, default=math.inf)
            for limit in (lowest + 0.5, 1.25 * lowest):  # at a tie, rounding decides
                assume(limit == math.inf or abs(mean - limit) > 1e-9)
            above.append(mean > lowest + 0.5 and mean > 1.25 * lowest)
            means.append(mean)
            if all(above[-50:]) and len(above) >= 50 and (len(above) == 50 or not above[-51]):
                found.append(step)
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(1, 120), st.sampled_from([0.1, 1.0, 2.0, 2.6, 3.0, 3.7, 3.8, 5.0, 11.0]), st.floats(0, 0.6)
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_divergence_equals_the_slow_reference(pieces: list[tuple[int, float, float]], rng: random.Random) -> None:
    losses: list[float | None] = []
    for length, level, noise in pieces:
        losses += [None if rng.random() < 0.03 else level + rng.uniform(0, noise) for _ in range(length)]
    warnings = watched([step_of(step, loss=loss) for step, loss in enumerate(losses, 1)])
    assert [step for step, _ in warnings] == divergences(losses)


# ---- messages


def test_divergence_names_its_steps_also_after_a_resume() -> None:
    losses = [4.0] * 100 + [3.0] * 100 + [6.0] * 300
    steps = [step_of(step, loss=loss) for step, loss in enumerate(losses, 1)]
    [(last, message)] = watched(steps)
    assert 250 <= last <= 270
    assert message.startswith(f"step {last}: the loss stays far above its lowest: 6.000 over the last 50 steps, once")
    assert "high since step 201." in message
    assert message.endswith("PEEK 201")
    assert watched(steps[150:], steps[:150]) == [(last, message)]


def test_waiting_for_data_warns_once_with_the_longest_step() -> None:
    """Time counts and not the number of steps; the first steps, which fill windows, do not count."""
    steps = [step_of(step, wait=0.5 if step == 1234 else 0.3) for step in range(1185, 1400)]
    ((step, message),) = watched(steps)
    assert step == 1185 + 10 + 50 - 1
    assert message.startswith("steps 1,195 to 1,244 spent 30% of their time waiting for data, step 1,234 the longest")
    assert message.endswith("; REMEDY; its documents are shown by: PEEK 1234")
    slow = [step_of(step, wait=0.9 * (step == 80), seconds=20.0 if step == 80 else 1.0) for step in range(1, 99)]
    ((step, message),) = watched(slow)
    assert step == 80
    assert "26% of their time" in message
    assert watched([step_of(step, wait=0.9 if step <= 10 else 0.0, seconds=100.0) for step in range(1, 200)]) == []
    assert watched([step_of(step, wait=0.2) for step in range(1, 200)]) == []


def told(sizes: list[dict[str, list[int]]]) -> list[tuple[int, Any, Any]]:
    """(step, kind, rank) of every warning."""
    found: list[tuple[int, Any, Any]] = []
    growth = MemoryGrowth()
    with warnings_of() as warnings:
        for step, each in enumerate(sizes, 1):
            growth.write(step, each)
            found += [(step, record.args[1], record.args[2]) for record in warnings]  # type: ignore[index]
            warnings.clear()
    return found


@given(data=st.data())
def test_the_warnings_are_those_of_a_reference_that_sees_the_whole_run(data: st.DataObject) -> None:
    spans = data.draw(st.integers(0, 12))
    lowest = [
        [data.draw(st.integers(0, 40)) * LEAST // 4 + (span * LEAST if grows else 0) + 2**28 for span in range(spans)]
        for grows in data.draw(st.lists(st.booleans(), min_size=2, max_size=2))
    ]
    sizes = [
        {"CPU": [of_rank[step // SPAN] + step % SPAN * LEAST for of_rank in lowest], "GPU": [7, 7]}
        for step in range(spans * SPAN)
    ]
    expected = []
    for rank, of_rank in enumerate(lowest):
        for last in range(SPANS - 1, spans):
            pairs = [(of_rank[n - 1], of_rank[n]) for n in range(last - SPANS + 2, last + 1)]
            if all(later - earlier >= max(LEAST, SHARE * earlier) for earlier, later in pairs):
                expected.append(((last + 1) * SPAN, "CPU", rank))
                break
    assert sorted(told(sizes)) == sorted(expected)


@pytest.mark.parametrize("memory", [True, False])
def test_the_log_of_a_run_warns_of_each_kind_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, memory: bool
) -> None:
    run, config = RunFolder(tmp_path), small_config({"log.memory": memory})
    with open_logs(run, config, single_rank(), "REMEDY", lambda step: f"PEEK {step}", 0) as log:
        for step in range(1, SPAN * SPANS + 1):
            loss = 3.0 if step <= 2 * SPAN else 6.0
            log(step_of(step, loss=loss, wait=0.5), {"CPU": [2**28 + step * LEAST, 2**28]})
    marks = "waiting for data", "far above", "CPU memory of rank 0"
    kinds = [mark for text in caplog.messages for mark in marks if mark in text]
    assert kinds == ["waiting for data", "far above", *["CPU memory of rank 0"] * memory]
    assert len(read_metrics(run.metrics_file)) == SPAN * SPANS
