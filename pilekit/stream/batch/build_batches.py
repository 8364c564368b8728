"""Building batches: take rows in turn from the lanes of a rank's share of the grid.

A batch depends on the grid, on the rank, and on the places of the lanes that it reads. So a DataLoader worker that
builds every n-th batch needs nothing from the other workers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.stream.batch.batch import BatchWriter
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Lane, rows_in
from pilekit.stream.pack.tokenized import Encoding, encoded
from pilekit.stream.pack.window import Place, RowRange, padding, pieces_of
from pilekit.stream.read.lane_documents import SKIPPED, SUBSET, LaneSource
from pilekit.stream.record import batch_state


class RawDocument(StoredDocument):
    """An untokenized document with its `stream_state`, int64, for `PileStream.advance`."""

    stream_state: Int64 | None = None


class RawBatch(list[StoredDocument]):
    """Several untokenized documents with their `stream_state`."""

    stream_state: Int64 | None = None


Item = Any
"""An item of a stream: a `Batch`, or without a tokenizer a `RawDocument` or a `RawBatch`."""


@dataclass(frozen=True)
class BatchBuilder:
    """Reads lanes of `source`, and makes batches of their rows.

    writer   None: items are untokenized documents
    """

    source: LaneSource
    encoding: Encoding
    writer: BatchWriter | None

    def lane(self, lane: int, place: Place) -> Lane:
        """The lane from `place` on."""
        documents = self.source.documents(lane, place.position, place.document)
        return Lane(encoded(documents, self.encoding), lane, place, self.encoding.layout, documents)

    def batch(self, share: Share, number: int, given: Sequence[RowRange], lanes: Int64, places: Int64) -> Item:
        """Batch `number` of the rows given, with its `stream_state`. Rows without documents fill it up.

        lanes, places   int64 [k], [k, 3]: the lanes it read, and their places after it
        """
        rows = rows_in(given)
        parts = [*given, padding(share.batch_size - rows)] if rows < share.batch_size else given
        pieces = pieces_of(parts)
        begun = pieces.table[pieces.begin == 0]
        tokens = np.bincount(pieces.table[:, SUBSET], pieces.length * (self.writer is not None)).astype(np.int64)
        documents = np.bincount(begun[:, SUBSET], minlength=len(tokens))
        used = np.flatnonzero(documents + tokens)
        state = batch_state(
            *(number, lanes, places, rows, int(begun[:, SKIPPED].sum())), *(used, documents[used], tokens[used])
        )
        if self.writer is None:
            return _raw_item(given, share.batch_size, state)
        batch = self.writer.batch(parts, pieces, self.encoding.shard_names)
        batch["stream_state"] = torch.from_numpy(state)
        return batch

    def named(self, given: Sequence[RowRange]) -> list[list[tuple[str, int]]]:
        """For each row, the (shard name, document number) of its documents."""
        return pieces_of([padding(0), *given]).documents(self.encoding.shard_names)


def _raw_item(given: Sequence[RowRange], batch_size: int, state: Int64) -> RawDocument | RawBatch:
    """Row r of a window is its document r."""
    documents = [
        document
        for some in given
        for document in some.window.documents.stored[some.first_row : some.first_row + some.count]
    ]
    item = RawDocument(*documents[0]) if batch_size == 1 else RawBatch(documents)
    item.stream_state = state
    return item


def build_batches(builder: BatchBuilder, share: Share, places: Int64, numbers: range) -> Generator[Item, None, None]:
    """The batches with these numbers, each with its `stream_state`.

    places   int64 [L, 3]: the place of each lane before the first of these batches that reads it
    """
    lanes: dict[int, Lane] = {}
    try:
        for number in numbers:
            read = share.read_by(number)
            given: list[RowRange] = []
            after = []
            for lane in read.tolist():
                if lane not in lanes:
                    lanes[lane] = builder.lane(lane, Place(*places[lane].tolist()))
                given += lanes[lane].give(share.per_lane)
                after.append(lanes[lane].place)
            yield builder.batch(share, number, given, read, np.array(after, np.int64).reshape(-1, 3))
    finally:
        for open_lane in lanes.values():
            open_lane.close()
