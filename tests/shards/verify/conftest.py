"""The shard that most tests of `verify` damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shards.making import some_lines
from tests.shards.verify.verified import write


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """About 100 checksummed frames."""
    return write(tmp_path / "corpus" / "00.jsonl.zst", some_lines(1200))
