"""Progress follows the scoring, and lags not far behind the reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.progress import ScoringProgress
from tests.evaluate.documents import write


def test_progress_follows_the_scoring(model_dir: Path, tmp_path: Path) -> None:
    """A small shard is read at once: its bytes are reported as its tokens are scored, and in the end all of them."""
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "the quick brown fox " * 20)] * 60)
    told: list[int] = []
    bits_per_byte(model_dir, shard, advance=told.append)
    assert sum(told) == shard.stat().st_size
    assert len(told) > 3
    assert all(amount > 0 for amount in told)


def test_progress_is_never_far_behind_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    progress = ScoringProgress(told.append)
    for _ in range(100):
        progress.read(1 << 20)
        progress.scored(0)
    assert sum(told) == (100 << 20) - ScoringProgress.READ_AHEAD
    progress.all()
    assert sum(told) == 100 << 20
