"""Making batches: the lanes that a rank's share of the grid names, read in turn.

A batch depends on the grid, on who asks for it, and on the places of the lanes that it reads; so a DataLoader's worker
that makes every n-th batch needs to know nothing of what the others do. What a lane gives, and what a batch is made
into, is the `Form`'s business: rows of tokens here, documents as they are in raw_documents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from pilekit.progress import Reached
from pilekit.stream.batch.batch import Batch, OpenBatch
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.order.lane_grid import Grid, Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Given, Lane, Layout, Place, counts
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.state import batch_state


class Giving(Protocol):
    """A lane that is read: `Lane`, or one that packs nothing."""

    place: Place

    def give(self, count: int) -> Sequence[Any]:
        """The next `count` samples in parts, each with its `count`; fewer only where the lane ends."""
        ...

    def close(self) -> None:
        """Close what it has opened."""
        ...


class Form(Protocol):
    """What samples are, and a batch of them."""

    @property
    def padded_by_first(self) -> bool:
        """Whether a finite pass ends with its first samples once more, rather than with empty ones."""
        ...

    def lane(self, source: LaneSource, lane: int, place: Place) -> Giving:
        """Lane `lane` of `source`, from `place` on."""
        ...

    def batch(self, share: Share, number: int, given: Sequence[Any], lanes: Int64, places: Int64) -> Any:
        """Batch `number` of what lanes gave, with its state: int64 [k] and [k, 3], where the lanes stand after it."""
        ...

    def named(self, given: Sequence[Any]) -> list[list[tuple[str, int]]]:
        """Per sample, the (shard name, document number) of its documents."""
        ...


@dataclass(frozen=True)
class PackedForm:
    """Samples are rows of tokens, batches `Batch`es: `layout` says how rows are made, the rest is `OpenBatch`'s.

    subsets   how many there are
    """

    layout: Layout
    outputs: Sequence[str]
    pad_id: int
    eos_id: int
    masking: Masking | None
    subsets: int

    @property
    def padded_by_first(self) -> bool:
        """A finite pass ends with rows without documents."""
        return False

    def lane(self, source: LaneSource, lane: int, place: Place) -> Lane:
        """A lane that packs."""
        return Lane(source, lane, place, self.layout)

    def batch(self, share: Share, number: int, given: Sequence[Given], lanes: Int64, places: Int64) -> Batch:
        """The rows given, then rows without documents."""
        batch = OpenBatch(
            share.batch_size,
            self.layout.seq_len,
            self.outputs,
            pad_id=self.pad_id,
            eos_id=self.eos_id,
            append_eod=self.layout.append_eod,
            masking=self.masking,
        )
        for rows in given:
            batch.fill(rows.window, rows.first_row, rows.count)
        filled = batch.filled
        if batch.left:
            batch.pad(batch.left)
        skipped, *counted = counts(given, self.subsets)
        state = batch_state(number, lanes, places, filled, skipped, *counted)
        return batch.close(self.layout.shard_names, torch.from_numpy(state))

    def named(self, given: Sequence[Given]) -> list[list[tuple[str, int]]]:
        """By doc_id."""
        found = []
        for some in given:
            rows, window = some.window.rows, some.window
            for row in range(some.first_row, some.first_row + some.count):
                documents = rows.document[rows.start[row] : rows.start[row + 1]]
                shards, numbers = window.shards[documents].tolist(), window.numbers[documents].tolist()
                found.append([(self.layout.shard_names[s], n) for s, n in zip(shards, numbers, strict=True)])
        return found


def made(source: LaneSource, form: Form, share: Share, places: Int64, numbers: range) -> Generator[Any, None, None]:
    """The batches of these numbers, each with its `stream_state`; a part of them that leaves each lane to one maker.

    places   int64 [L, 3]: where the lanes stand before the first of `numbers` that reads them
    """
    lanes: dict[int, Giving] = {}
    try:
        for number in numbers:
            read = share.read_by(number)
            given: list[Any] = []
            after = []
            for lane in read.tolist():
                if lane not in lanes:
                    lanes[lane] = form.lane(source, lane, Place(*places[lane].tolist()))
                given += lanes[lane].give(share.per_lane)
                after.append(lanes[lane].place)
            yield form.batch(share, number, given, read, np.array(after, np.int64).reshape(-1, 3))
    finally:
        for open_lane in lanes.values():
            open_lane.close()


def given_to_step(
    source: LaneSource,
    form: Form,
    grid: Grid,
    step: int,
    begun: Mapping[int, tuple[Place, int]],
    reached: Reached | None = None,
) -> list[Any]:
    """What the lanes give to optimizer step `step`, for all ranks.

    begun     for each lane of the step's column where to begin to count, and how many samples it gives before the step
    reached   called now and then with how many of those samples are behind
    """
    found: list[Any] = []
    done, total = 0, sum(before for _, before in begun.values())

    def passed(count: int) -> None:
        nonlocal done
        done += count
        if reached is not None:
            reached(done, total)

    for lane in range(step % grid.columns, grid.lanes, grid.columns):
        place, before = begun[lane]
        reading = form.lane(source, lane, place)
        try:
            passed_over(reading, before, passed)
            found += reading.give(grid.per_visit)
        finally:
            reading.close()
    return found


def passed_over(lane: Giving, count: int, passed: Callable[[int], None] = lambda count: None) -> int:
    """Pass over the lane's next `count` samples, in small parts, so that none are kept; returns how many there were.

    passed   called with each further number of them
    """
    left = count
    while left > 0:
        asked = min(left, 64)
        found = sum(some.count for some in lane.give(asked))
        left -= found
        passed(found)
        if found < asked:
            break
    return count - left
