"""`stream.loader()`: the number of workers, errors in them, and that only batches handed out count."""

from __future__ import annotations

import sys
from itertools import islice
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from pilekit.documents import Document
from pilekit.errors import PilekitError
from pilekit.pipeline.functions import document_filter
from pilekit.stream.pile_stream import PileStream
from tests.refusing import refused
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
    corpora: Corpora, settings: Settings, workers: int, active: int
) -> None:
    given = {**settings, "batch_size": 8, "grad_accum": 2, "outputs": ALL}
    stream = PileStream(corpora["few"].folder, **given)
    assert stream.share.workers(workers) == active
    wanted = [rows_of(batch, stream.subset_names) for batch in islice(stream, 6)]
    fresh = PileStream(corpora["few"].folder, **given)
    loader = fresh.loader(num_workers=workers)
    for begin in (0, 3):  # two iterations
        found = [rows_of(batch, fresh.subset_names) for batch in islice(loader, 3)]
        assert found == wanted[begin : begin + 3]
    assert fresh.state_dict() == stream.state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_fails_is_one_line_wherever(corpora: Corpora, settings: Settings, workers: int) -> None:
    stream = PileStream(corpora["mixed"].folder, **settings, filters=[fails])
    with pytest.raises(PilekitError, match=r"document 3: the function fails raised ValueError: three") as raised:
        for _ in islice(stream.loader(num_workers=workers), 200):
            pass
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
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


def test_wrong_options(corpora: Corpora, settings: Settings) -> None:
    stream = PileStream(corpora["few"].folder, **settings)
    for value in (-1, 2.0, "2", None):
        refused("num_workers = .*: must be a whole number from 0 to ", stream.loader, num_workers=value)
    with pytest.raises(TypeError, match="persistent_workers"):
        stream.loader(persistent_workers=True)


# Other frameworks; the real ones are in tests/frameworks


def test_under_accelerate_only_the_loader_is_iterated_on_several_ranks(
    corpora: Corpora, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("accelerate.state")
    module.PartialState = SimpleNamespace(_shared_state={})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    one = PileStream(corpora["few"].folder, **settings, batch_size=16)
    two = PileStream(corpora["few"].folder, **settings, batch_size=8, rank=1, world_size=2)
    next(iter(two))
    module.PartialState._shared_state["backend"] = "gloo"
    next(iter(one))
    for workers in (0, 1):
        next(iter(two.loader(num_workers=workers)))
        with pytest.raises(PilekitError, match=r"second time.*send_to_device\(batch, accelerator.device\)"):
            next(iter(DataLoader(two, batch_size=None, num_workers=workers)))
    refused("override get_train_dataloader", iter, two)


def test_lightning_is_told_of_once(
    corpora: Corpora, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = PileStream(corpora["few"].folder, **settings, batch_size=16).loader()
    next(iter(loader))
    assert "Lightning" not in caplog.text
    monkeypatch.setitem(sys.modules, "lightning.pytorch", ModuleType("lightning.pytorch"))
    loader = loader.stream.loader()  # type: ignore[attr-defined]
    next(iter(loader))
    next(iter(loader))
    assert caplog.text.count("call stream.advance(batch) in training_step") == 1
