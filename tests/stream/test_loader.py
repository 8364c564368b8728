"""`stream.loader()`: how many workers, what fails in them, and that what was handed out counts."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

import pytest
import torch

from pilekit.errors import PilekitError
from pilekit.pipeline import Document, document_filter
from pilekit.stream import PileStream
from tests.stream.collecting import ALL, no_brown_fox, rows_of
from tests.stream.conftest import Corpora, Settings


@document_filter
def fails(document: Document) -> bool:
    """Fails at some documents."""
    if document.number == 3:
        raise ValueError("three")
    return True


@pytest.mark.parametrize(("workers", "active"), [(1, 1), (2, 2), (3, 2), (5, 4)])
def test_as_many_workers_as_leave_each_lane_to_one(
    corpora: Corpora, settings: Settings, caplog: pytest.LogCaptureFixture, workers: int, active: int
) -> None:
    given = {**settings, "batch_size": 8, "grad_accum": 2, "outputs": ALL}
    stream = PileStream(corpora["few"].folder, **given)
    wanted = [rows_of(batch, stream.subset_names) for batch in islice(stream, 6)]
    fresh = PileStream(corpora["few"].folder, **given)
    loader = fresh.loader(num_workers=workers)
    with caplog.at_level(logging.WARNING):
        for begin in (0, 3):  # two iterations, and the second is not told again
            found = [rows_of(batch, fresh.subset_names) for batch in islice(loader, 3)]
            assert found == wanted[begin : begin + 3]
    told = [record.message for record in caplog.records if "workers are active" in record.message]
    assert told == ([] if active == workers else [told[0]])
    assert all(message.startswith(f"{active} of {workers} workers") and "1, 2, 4" in message for message in told)
    assert fresh.state_dict() == stream.state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_fails_is_one_line_wherever(corpora: Corpora, settings: Settings, workers: int) -> None:
    stream = PileStream(corpora["mixed"].folder, **settings, filters=[fails])
    with pytest.raises(PilekitError, match=r"document 3: the function fails raised ValueError: three") as raised:
        for _ in islice(stream.loader(num_workers=workers), 200):
            pass
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_however_workers_start(corpora: Corpora, settings: Settings, context: str) -> None:
    given = {**settings, "batch_size": 16, "outputs": ALL, "filters": [no_brown_fox]}
    stream = PileStream(corpora["uneven"].folder, **given)
    next(iter(stream))  # open files and the tokenizer's threads belong to this process
    wanted = [rows_of(batch, stream.subset_names) for batch in islice(PileStream(corpora["uneven"].folder, **given), 3)]
    loader = stream.loader(num_workers=1, multiprocessing_context=context)
    assert [rows_of(batch, stream.subset_names) for batch in islice(loader, 2)] == wanted[1:]


def test_batches_come_without_their_state_and_belong_to_the_loop(corpora: Corpora, settings: Settings) -> None:
    stream = PileStream(corpora["few"].folder, **settings, batch_size=8)
    for workers in (0, 1):
        first, second = islice(stream.loader(num_workers=workers), 2)
        assert list(first) == ["input_ids", "labels", "position_ids"]
        before = second["input_ids"].clone()
        first["input_ids"].zero_()
        assert torch.equal(second["input_ids"], before)
        assert len(second.documents()) == 8


@pytest.mark.parametrize("wrong", [-1, 2.0, "2", None])
def test_wrong_counts(corpora: Corpora, settings: Settings, wrong: Any) -> None:
    with pytest.raises(PilekitError, match="num_workers is a whole number from 0 on"):
        PileStream(corpora["few"].folder, **settings).loader(num_workers=wrong)


@pytest.mark.parametrize(
    "wrong", [{"prefetch_factor": 0}, {"prefetch_factor": "2"}, {"multiprocessing_context": "thread"}], ids=str
)
@pytest.mark.parametrize("workers", [0, 2])
def test_wrong_options(corpora: Corpora, settings: Settings, wrong: Settings, workers: int) -> None:
    (name,) = wrong
    with pytest.raises(PilekitError, match=f"{name} is "):
        PileStream(corpora["few"].folder, **settings).loader(num_workers=workers, **wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_option_that_there_is_not(corpora: Corpora, settings: Settings, workers: int) -> None:
    with pytest.raises(TypeError, match="no option persistent_workers; it takes num_workers, prefetch_factor, pin_mem"):
        PileStream(corpora["few"].folder, **settings).loader(num_workers=workers, persistent_workers=True)
