"""The stream's own state inside a DataLoader's worker, as a loader that keeps its workers' states uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from tests.stream.collecting import ALL, STEP, rows_of, run
from tests.stream.conftest import Corpora, Settings

Told = tuple[int, STEP, str, str]
"""A worker, its batch, and the stream's state in that worker before and after the batch."""


class Telling(IterableDataset[Told]):
    """A stream whose workers load their own states before they begin, and return them with each batch."""

    def __init__(self, stream: PileStream, states: dict[int, str] | None = None) -> None:
        self.stream, self.states = stream, states or {}

    def __iter__(self) -> Iterator[Told]:
        info = get_worker_info()
        assert info is not None
        if info.id in self.states:
            self.stream.load_state_dict(json.loads(self.states[info.id]))
        batches = iter(self.stream)
        before = json.dumps(self.stream.state_dict())
        for batch in batches:
            rows = rows_of(batch, self.stream.subset_names)
            after = json.dumps(self.stream.state_dict())
            yield info.id, rows, before, after
            before = after


def as_it_is(item: Any) -> Any:
    return item


def told(telling: Telling, workers: int, count: int) -> list[Told]:
    batches = iter(DataLoader(telling, batch_size=None, num_workers=workers, collate_fn=as_it_is))
    found = []
    for _ in range(count):
        try:
            found.append(next(batches))
        except StopIteration:
            break
    return found


def test_a_worker_resumes_where_its_own_state_says(corpora: Corpora, settings: Settings) -> None:
    given = {**settings, "batch_size": 16}
    whole, _ = run(corpora["mixed"].folder, given, batches=20)
    _, begun = run(corpora["mixed"].folder, given, batches=2)
    for asked, active, done, first, state in [(1, 1, 3, 0, None), (2, 2, 4, 0, None), (3, 2, 3, 2, begun)]:
        stream = PileStream(corpora["mixed"].folder, **given, outputs=ALL)
        if state is not None:
            stream.load_state_dict(json.loads(state))
        every = told(Telling(stream), asked, 7)
        assert [rows for _, rows, _, _ in every] == whole[first : first + 7]
        states = {worker: before for worker, _, before, _ in reversed(every)}
        states |= {worker: after for worker, _, _, after in every[:done]}
        fresh = PileStream(corpora["mixed"].folder, **given, outputs=ALL)
        rest = told(Telling(fresh, states), asked, 6)
        for worker in range(active):
            mine = [rows for index, rows in enumerate(whole[first:]) if index >= done and index % active == worker]
            found = [rows for told_by, rows, _, _ in rest if told_by == worker]
            assert found == mine[: len(found)] != []


def test_a_workers_state_fits_nowhere_else(corpora: Corpora, settings: Settings) -> None:
    def stream() -> PileStream:
        return PileStream(corpora["few"].folder, **settings, batch_size=16, outputs=ALL)

    one = told(Telling(stream()), 2, 1)[0][3]
    with pytest.raises(PilekitError, match="one worker"):
        stream().load_state_dict(json.loads(one))
    with pytest.raises(PilekitError, match="one worker"):
        PileStream.merge_state_dicts([json.loads(one)])
    for states, workers in [({1: one}, 2), ({0: one}, 1), ({0: json.dumps({**json.loads(one), "worker": 0})}, 2)]:
        with pytest.raises(PilekitError, match="that of another worker"):
            told(Telling(stream(), states), workers, 2)


def test_a_worker_that_has_not_begun_has_no_state(corpora: Corpora, settings: Settings) -> None:
    stream: Any = PileStream(corpora["few"].folder, **settings, batch_size=16)
    loader = DataLoader(stream, batch_size=None, num_workers=1, worker_init_fn=lambda _: stream.state_dict() and None)
    with pytest.raises(PilekitError, match="only its own part"):
        next(iter(loader))
