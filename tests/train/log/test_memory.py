"""Memory that grows and grows is told, once for each rank and kind; memory that goes up and down is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.train.log import alerts
from pilekit.train.log.alerts import LEAST, SHARE, SPAN, SPANS, MemoryGrowth
from tests.train.runs import tiny_run, trainer, warnings_of


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


def test_a_run_that_leaks_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "SPAN", 2)
    monkeypatch.setattr(alerts, "SPANS", 3)
    made, leak = tiny_run(tmp_path, "train.steps=14", "train.micro_batch_size=4"), []
    for setting in ("false", "true"):
        trainer(made, tmp_path / setting, f"log.memory={setting}").fit(lambda _: leak.append(b"x" * (16 << 20)))
        texts = [text for text in caplog.messages if "memory" in text]
        assert bool(texts) == (setting == "true")
    assert "the CPU memory of rank 0 grows steadily: " in texts[0]
    assert len(texts) == 1
