"""A warning, once, where a stock DataLoader gives an epoch again because nothing was recorded; and nowhere else."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pilekit.stream import PileStream
from tests.stream.conftest import Corpora, Settings

Told = Callable[[], int]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """How often it was told so far, in whichever process: a forked worker writes into the same file."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("pilekit").addHandler(handler)
    yield lambda: (tmp_path / "log").read_text().count("call stream.advance(batch) for each batch")
    logging.getLogger("pilekit").removeHandler(handler)
    handler.close()


@pytest.fixture
def stream(corpora: Corpora, settings: Settings) -> PileStream:
    return PileStream(corpora["few"].folder, **settings, batch_size=8, samples_per_epoch=24)


def loader_of(stream: PileStream, **options: Any) -> DataLoader[Any]:
    return DataLoader(stream, batch_size=None, **{"num_workers": 2, **options})


def test_an_epoch_again_is_told_once(stream: PileStream, told: Told) -> None:
    loader = loader_of(stream)
    first = [batch.documents() for batch in loader]
    assert told() == 0
    for _ in range(2):
        assert [batch.documents() for batch in loader] == first, "so it is indeed"
        assert told() == 1


def test_it_is_told_in_workers_that_are_spawned(stream: PileStream, capfd: pytest.CaptureFixture[str]) -> None:
    loader = loader_of(stream, num_workers=1, multiprocessing_context="spawn")
    assert len(list(loader)) == 3
    assert "same batches" not in capfd.readouterr().err
    assert len(list(loader)) == 3
    assert capfd.readouterr().err.count("same batches as the one before") == 1


def test_epochs_that_are_recorded_follow_each_other(stream: PileStream, told: Told) -> None:
    for way in ("advance", "advance", "loader", "loader", "iter", "iter", "advance"):
        if way == "advance":
            for batch in loader_of(stream):
                stream.advance(batch)
        else:
            assert len(list(stream.loader(num_workers=2) if way == "loader" else stream)) == 3
    assert stream.state_dict()["step"] == 7 * 3 * 8 // stream.global_batch_size
    assert told() == 0


def test_going_back_on_purpose_is_not_told(stream: PileStream, told: Told) -> None:
    state = stream.state_dict()
    for _ in range(2):
        stream.load_state_dict(state)
        assert len(list(loader_of(stream))) == 3
    assert told() == 0


def test_nor_are_a_look_at_the_first_batch_and_another_stream(
    corpora: Corpora, settings: Settings, stream: PileStream, told: Told
) -> None:
    long = PileStream(corpora["few"].folder, **settings, batch_size=8, samples_per_epoch=8 * 1000)
    for _ in range(3):
        next(iter(loader_of(long)))
    assert len(list(loader_of(stream))) == 3
    assert len(list(loader_of(pickle.loads(pickle.dumps(stream))))) == 3
    assert told() == 0


def test_passes_that_end_are_meant_to_be_given_again(corpora: Corpora, settings: Settings, told: Told) -> None:
    del (given := dict(settings))["lanes"]
    stream = PileStream(corpora["few"].folder, **given, batch_size=8, epochs=1)
    assert len({len(list(islice(loader_of(stream), 100))) for _ in range(2)}) == 1
    assert told() == 0
