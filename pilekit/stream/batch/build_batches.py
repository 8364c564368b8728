"""Making batches: the lanes that a rank's share of the grid names, read in turn.

A batch depends on the grid, on the rank that asks for it, and on the places of the lanes that it reads; so a DataLoader
worker that makes every n-th batch needs to know nothing of the others. A `BatchBuilder` says which samples a lane gives
and makes a batch of them: rows of tokens here, documents as they are in raw_documents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from pilekit.stream.batch.batch import Batch, BatchWriter
from pilekit.stream.batch.raw_documents import RawLane
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Lane, Place, counts
from pilekit.stream.pack.tokenized_lane import Encoding, TokenizedLane
from pilekit.stream.pack.window import RowRange, padding
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.record import batch_state


class BatchBuilder(Protocol):
    """What samples are, and a batch of them."""

    @property
    def padded_by_first(self) -> bool:
        """Whether a finite pass ends with its first samples once more, rather than with empty ones."""
        ...

    def lane(self, source: LaneSource, lane: int, place: Place) -> Lane | RawLane:
        """Lane `lane` of `source`, from `place` on."""
        ...

    def batch(self, share: Share, number: int, given: Sequence[Any], lanes: Int64, places: Int64) -> Any:
        """Batch `number` of what lanes gave, with its state: int64 [k] and [k, 3], where the lanes stand after it."""
        ...

    def named(self, given: Sequence[Any]) -> list[list[tuple[str, int]]]:
        """Per sample, the (shard name, document number) of its documents."""
        ...


@dataclass(frozen=True)
class PackedBatches:
    """Samples are rows of tokens, batches `Batch`es.

    subsets   how many there are
    """

    encoding: Encoding
    writer: BatchWriter
    subsets: int

    padded_by_first = False
    """A finite pass ends with rows without documents."""

    def lane(self, source: LaneSource, lane: int, place: Place) -> Lane:
        """A lane that packs."""
        documents = TokenizedLane(source, lane, place.position, place.document, self.encoding)
        return Lane(documents, place, self.encoding)

    def batch(self, share: Share, number: int, given: Sequence[RowRange], lanes: Int64, places: Int64) -> Batch:
        """The rows given, then rows without documents."""
        filled = sum(rows.count for rows in given)
        skipped, *counted = counts(given, self.subsets)
        state = torch.from_numpy(batch_state(number, lanes, places, filled, skipped, *counted))
        padded = [*given, padding(share.batch_size - filled)] if filled < share.batch_size else given
        return self.writer.batch(padded, self.encoding.shard_names, state)

    def named(self, given: Sequence[RowRange]) -> list[list[tuple[str, int]]]:
        """By doc_id."""
        found = []
        for some in given:
            rows, window = some.window.rows, some.window
            for row in range(some.first_row, some.first_row + some.count):
                documents = rows.document[rows.start[row] : rows.start[row + 1]]
                shards, numbers = window.shards[documents].tolist(), window.numbers[documents].tolist()
                found.append([(self.encoding.shard_names[s], n) for s, n in zip(shards, numbers, strict=True)])
        return found


def build_batches(
    source: LaneSource, builder: BatchBuilder, share: Share, places: Int64, numbers: range
) -> Generator[Any, None, None]:
    """The batches of these numbers, each with its `stream_state`; a part of them that leaves each lane to one maker.

    places   int64 [L, 3]: where the lanes stand before the first of `numbers` that reads them
    """
    lanes: dict[int, Lane | RawLane] = {}
    try:
        for number in numbers:
            read = share.read_by(number)
            given: list[Any] = []
            after = []
            for lane in read.tolist():
                if lane not in lanes:
                    lanes[lane] = builder.lane(source, lane, Place(*places[lane].tolist()))
                given += lanes[lane].give(share.per_lane)
                after.append(lanes[lane].place)
            yield builder.batch(share, number, given, read, np.array(after, np.int64).reshape(-1, 3))
    finally:
        for open_lane in lanes.values():
            open_lane.close()


def passed_over(lane: Lane | RawLane, count: int, passed: Callable[[int], None] = lambda count: None) -> int:
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
