"""The fixture that makes the files of a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.making import Make, fill


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make files, each with its name as content, in a new folder."""

    def make(*names: str) -> Path:
        return fill(tmp_path / "corpus", names)

    return make
