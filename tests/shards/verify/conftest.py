"""A cache folder for each test, and the shard that most tests of `verify` damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shards.making import some_lines
from tests.shards.verify.verified import write


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PILEKIT_CACHE", str(folder))
    return folder


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """About 100 checksummed frames."""
    return write(tmp_path / "corpus" / "00.jsonl.zst", some_lines(1200))
