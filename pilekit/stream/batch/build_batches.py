"""Building batches: take rows in turn from the lanes of a rank's share of the grid.

A batch depends on the grid, on the rank, and on the places of the lanes that it reads. So a DataLoader worker that
builds every n-th batch needs nothing from the other workers. `rows_of_step` makes the rows of one optimizer step,
for all ranks, without handing out the steps before it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pilekit.corpus.shuffle import Int64
from pilekit.display.progress import Reached
from pilekit.documents import Document
from pilekit.errors import PilekitError
from pilekit.stream.batch.batch import BatchWriter
from pilekit.stream.batch.plant import PlantedRows
from pilekit.stream.batch.without import Without
from pilekit.stream.order.lane_grid import Grid, Share
from pilekit.stream.pack import lane_windows
from pilekit.stream.pack.encode import Encoder
from pilekit.stream.pack.lane import Lane, rows_in
from pilekit.stream.pack.subset_lanes import SubsetLanes
from pilekit.stream.pack.window import (
    DOCUMENT,
    Layout,
    Place,
    Turns,
    Window,
    padding,
    pieces_of,
)
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.read.token_files import TokenIndex
from pilekit.stream.record import batch_state
from pilekit.tokenize import Tokenizer


class RawDocument(Document):
    """An untokenized document with its `stream_state`, int64, for `PileStream.advance`."""

    stream_state: Int64 | None = None


class RawBatch(list[Document]):
    """Several untokenized documents with their `stream_state`."""

    stream_state: Int64 | None = None


Item = Any
"""An item of a stream: a `Batch`, or without a tokenizer a `RawDocument` or a `RawBatch`."""


@dataclass(frozen=True)
class BatchBuilder:
    """Reads lanes of `source`, and makes batches of their rows.

    source        gives a lane's texts, or with a schedule of weights a lane's windows
    per_visit     rows that a step takes from a lane
    tokenizer     None: items are untokenized documents; so is `writer`
    shard_names   by a document's shard number
    token_files   by a document's shard number, if documents come from token files
    without       documents whose labels are ignored
    plant         rows that are replaced
    """

    source: LaneSource | SubsetLanes
    per_visit: int
    layout: Layout
    tokenizer: Tokenizer | None
    writer: BatchWriter | None
    shard_names: Sequence[str]
    token_files: Sequence[TokenIndex] = ()
    without: Without | None = None
    plant: PlantedRows | None = None

    @contextmanager
    def lane(self, lane: int, place: Place, before: int) -> Iterator[Lane]:
        """The lane from `place`, which follows its first `before` rows; at the end its files are closed."""
        turns = Turns(before, self.per_visit)
        if isinstance(self.source, SubsetLanes):
            with self.source.windows(lane, place, self.layout, turns, self._encoder) as windows:
                yield Lane(windows, place, self.layout)
            return
        with closing(self.source.documents(lane, place.position, place.document)) as documents:
            encoded = self._encoder.encoded(documents, self.layout)
            yield Lane(lane_windows.windows(encoded, lane, place, self.layout, turns), place, self.layout)

    @property
    def _encoder(self) -> Encoder:
        return Encoder(self.tokenizer, self.token_files)

    def planted(self, share: Share, number: int, windows: Sequence[Window]) -> Sequence[Window]:
        """The rows of batch `number`, some of them replaced."""
        return windows if self.plant is None else self.plant.replace(share, number, windows)

    def batch(self, share: Share, number: int, windows: Sequence[Window], lanes: Int64, places: Int64) -> Item:
        """Batch `number` of the rows given, with its `stream_state`. Rows without documents fill it up.

        lanes, places   int64 [k], [k, n]: the lanes it read, and their places after it
        """
        rows = rows_in(windows)
        parts = [*windows, padding(share.batch_size - rows)] if rows < share.batch_size else windows
        pieces = pieces_of(parts)
        state = batch_state(number, lanes, places, rows, pieces.columns, self.writer is not None)
        if self.writer is None:
            return _raw_item(windows, share.batch_size, state)
        batch = self.writer.batch(parts, pieces, self.shard_names)
        if self.without is not None and "labels" in batch:
            self.without.hide(batch["labels"], pieces)
        batch["stream_state"] = torch.from_numpy(state)
        return batch


def _raw_item(windows: Sequence[Window], batch_size: int, state: Int64) -> RawDocument | RawBatch:
    """Each row is one document."""
    documents = [
        window.documents.stored[document] for window in windows for document in window.pieces[:, DOCUMENT].tolist()
    ]
    item = RawDocument(*documents[0]) if batch_size == 1 else RawBatch(documents)
    item.stream_state = state
    return item


def build_batches(builder: BatchBuilder, share: Share, places: Int64, numbers: range) -> Generator[Item, None, None]:
    """The batches with these numbers, each with its `stream_state`.

    places   int64 [L, n]: the place of each lane before the first of these batches that reads it
    """
    lanes: dict[int, Lane] = {}
    per_lane, width = share.per_lane, places.shape[1]
    with ExitStack() as opened:
        for number in numbers:
            read = share.read_by(number)
            windows: list[Window] = []
            after = np.empty((len(read), width), np.int64)
            for place, number_of_lane in enumerate(read.tolist()):
                lane = lanes.get(number_of_lane)
                if lane is None:
                    begun = builder.lane(number_of_lane, Place.of(places[number_of_lane]), share.rows_before(number))
                    lane = lanes[number_of_lane] = opened.enter_context(begun)
                windows += lane.give(per_lane)
                after[place] = lane.place_now
            rows = builder.planted(share, number, windows)
            yield builder.batch(share, number, rows, read, after)


def rows_of_step(
    builder: BatchBuilder,
    grid: Grid,
    step: int,
    known_places: Sequence[tuple[int, Int64]],
    reached: Reached | None = None,
) -> Sequence[Window]:
    """The rows of optimizer step `step`, for all ranks.

    known_places   steps, and the places of all lanes before each
    reached        called now and then with the number of rows already passed before the step, and their total

    PilekitError if no place before the step is known.
    """
    usable = [(at, places) for at, places in known_places if at <= step]
    if not usable:
        raise PilekitError(
            f"step {step} was made with other subsets or repeats, or lies before what is known of it; load a state "
            "from before it"
        )
    at, places = max(usable, key=lambda pair: pair[0])
    column = step % grid.columns
    before, until = (len(range(column, border, grid.columns)) * grid.per_visit for border in (at, step))
    windows: list[Window] = []
    passed_rows, total = 0, (until - before) * grid.rows
    for number in range(column, grid.lanes, grid.columns):
        with builder.lane(number, Place.of(places[number]), before) as lane:
            remaining = until - before
            while remaining > 0 and (passed := lane.skip(min(remaining, 64))):
                remaining, passed_rows = remaining - passed, passed_rows + passed
                if reached is not None:
                    reached(passed_rows, total)
            windows += lane.give(grid.per_visit)
    return builder.planted(Share(grid, 0, 1, 1), step, windows)
