"""A stream that would be dealt out twice is refused; here by stand-ins, by the real frameworks in tests/frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from tests.stream.conftest import Corpora, Settings

PREPARED = """
class {name}:
    def __init__(self, dataset):
        self.dataset = dataset
    def set_epoch(self, epoch):
        self.dataset.set_epoch(epoch)
    def __iter__(self):
        for batch in self.dataset:
            yield batch
"""

FETCHER = """
class {name}:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        return iter(self.loader)
"""


def stand_in(module: str, name: str, source: str) -> Any:
    """A class of this name that says that it is of `module`."""
    names: dict[str, Any] = {"__name__": module}
    exec(source.format(name=name), names)
    return names[name]


@pytest.fixture
def make(corpora: Corpora, settings: Settings) -> Callable[[], PileStream]:
    return lambda: PileStream(corpora["few"].folder, **settings, batch_size=16)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("accelerate.data_loader", "DataLoaderShard"),
        ("accelerate.data_loader", "DataLoaderDispatcher"),
        ("accelerate.data_loader", "IterableDatasetShard"),
        ("transformers.trainer_pt_utils", "IterableDatasetShard"),
    ],
)
def test_what_deals_out_again_is_refused(make: Callable[[], PileStream], module: str, name: str) -> None:
    prepared = stand_in(module, name, PREPARED)(make())
    with pytest.raises(PilekitError, match=r"second time.*send_to_device\(batch, accelerator.device\)"):
        next(iter(prepared))
    with pytest.raises(PilekitError, match="second time"):
        prepared.set_epoch(0)
    iterated: dict[str, Any] = {"__name__": "transformers.trainer", "prepared": prepared}
    with pytest.raises(PilekitError, match="override get_train_dataloader"):
        exec("next(iter(prepared))", iterated)


def test_what_only_passes_batches_on_is_not(make: Callable[[], PileStream]) -> None:
    first = next(iter(make()))["input_ids"]
    for module, name in [("accelerate.data_loader", "SkipDataLoader"), ("somewhere", "DataLoaderShard")]:
        prepared = stand_in(module, name, PREPARED)(make())
        prepared.set_epoch(0)
        assert next(iter(prepared))["input_ids"].equal(first)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize(
    ("more", "loop", "problem"),
    [
        ({}, "fit_loop", "reads a batch ahead.*samples_per_epoch=.*stream.advance"),
        ({}, "training_epoch_loop", "reads a batch ahead"),
        ({"rank": 1, "world_size": 2}, "fit_loop", "reads a batch ahead.*on_save_checkpoint"),
        ({"rank": 1, "world_size": 2, "samples_per_epoch": 64}, "fit_loop", "of rank 0 alone.*on_save_checkpoint"),
        ({"samples_per_epoch": 64}, "fit_loop", None),
        ({}, "evaluation_loop", None),
    ],
)
def test_lightning_gets_no_loader_whose_state_it_would_save_wrongly(
    corpora: Corpora, settings: Settings, package: str, more: Settings, loop: str, problem: str | None
) -> None:
    stream = PileStream(corpora["few"].folder, **settings, **more, batch_size=16)
    for name in ("_PrefetchDataFetcher", "_DataLoaderIterDataFetcher"):
        fetcher = stand_in(f"{package}.loops.fetchers", name, FETCHER)(stream.loader())
        calling: dict[str, Any] = {"__name__": f"{package}.loops.{loop}", "fetcher": fetcher}
        if problem is not None and name == "_PrefetchDataFetcher":
            with pytest.raises(PilekitError, match=problem):
                exec("batches = iter(fetcher)", calling)
        else:
            exec("batches = iter(fetcher)", calling)
            assert counted(calling["batches"], 2) == [16, 16]


def counted(batches: Iterable[Any], count: int) -> Sequence[int]:
    return [len(batch["input_ids"]) for batch in islice(batches, count)]
