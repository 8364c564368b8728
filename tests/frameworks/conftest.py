"""The files that the scripts of docs/frameworks.md need in their folder, and the batches of the stream alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pilekit.stream.pile_stream import PileStream
from tests.frameworks.environment import frameworks_python
from tests.frameworks.watched import digests
from tests.stream.corpora import made
from tests.tiny.models import tiny_model, tiny_tokenizer

Rows = list[list[str]]
"""The digests of the rows of each batch."""


@pytest.fixture(scope="session")
def python() -> Path:
    return frameworks_python()


@pytest.fixture(scope="session")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a tokenizer and a model's configuration."""
    folder = tmp_path_factory.mktemp("frameworks")
    made(folder / "data" / "train", [1100, 1100])
    tiny_tokenizer(folder)
    tiny_model(max_length=256).config.save_pretrained(folder / "model")
    return folder


@pytest.fixture
def folder(materials: Path, tmp_path: Path) -> Path:
    """The test's own folder with these files."""
    for thing in materials.iterdir():
        (tmp_path / thing.name).symlink_to(thing)
    return tmp_path


@pytest.fixture(scope="session")
def alone(materials: Path) -> Callable[..., Rows]:
    """`alone(count, **changes)`: the first `count` batches of the stream alone, with the scripts' global batch size."""

    def alone(count: int, **changes: Any) -> Rows:
        settings = {"seq_len": 256, "batch_size": 16, **changes}
        stream = PileStream(materials / "data" / "train", tokenizer=materials / "tokenizer.json", **settings)
        return [digests(batch) for batch in islice(stream, count)]

    return alone
