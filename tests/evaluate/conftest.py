"""A model, corpora, and the result of one undisturbed evaluation: made once, and changed by no test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from tests.evaluate.folders import note_scored
from tests.tiny.models import tiny_corpus, tiny_model_dir


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=25)


@pytest.fixture(scope="session")
def slow_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus long enough to stop a run in the middle."""
    return tiny_corpus(tmp_path_factory.mktemp("slow"), documents=400)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def whole(model_dir: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[BitsPerByte, Path]:
    """The result of one undisturbed run, and its folder."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return bits_per_byte(model_dir, corpus, out=out), out


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The documents whose scoring began, of every evaluation of this test."""
    begun: list[tuple[str, int]] = []
    note_scored(monkeypatch, begun)
    return begun
