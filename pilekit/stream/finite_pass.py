"""Finite passes: every row once, shared among ranks and workers that do not talk to each other.

There are no lanes here, as no two of them would end at the same step. Every rank and worker packs the same single
sequence, lane 0 of 1, and keeps its own rows by their number. With G rows in a step, row i belongs to step i div G. Of
the W x a equal parts of a step, number r x a + b is micro-batch b of rank r. Whether a step exists, and how much of it
is padding, follows from the number of rows alone. So all ranks make the same number of batches. The rows missing in the
last step are rows without documents, or the step is dropped.

Each worker of a rank makes every n-th batch. Each of them tokenizes everything: passes that are long enough for this to
matter are for lanes.

The place behind a batch is behind its last row; behind the last micro-batch of a step it is the end of the step, the
same on all ranks. So the number of rows before a place follows from the batch's number, and a pass can resume between
steps with other ranks, workers and accumulation.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pilekit.errors import PilekitError
from pilekit.stream.batch.build_batches import BatchBuilder, Item
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.pack.lane import rows_between, rows_in
from pilekit.stream.pack.window import Place, RowRange
from pilekit.stream.record import WorkerPart

_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Passes:
    """What an iteration goes through: `epochs` epochs of the shared sequence, from number `epoch` on.

    drop_last   leave out a last step that rows do not fill, instead of padding it
    """

    epochs: int
    drop_last: bool
    epoch: int = 0

    def borders(self, positions: int) -> tuple[int, int]:
        """The first position, and the one behind the last, where an epoch has so many."""
        return self.epoch * positions, (self.epoch + self.epochs) * positions


def pass_part(
    builder: BatchBuilder,
    share: Share,
    passes: Passes,
    begin: Place,
    place: Place,
    first: int,
    part: WorkerPart,
    *,
    again: bool,
) -> Generator[Item, None, None]:
    """The rest of this part of the rank's batches, from batch `first` on, which begins at `place`.

    begin   of the pass, in lane 0
    again   if no rank and worker has a batch left, give this part of the whole pass
    """
    behind = first + part.worker + (part.made - 1) * part.workers if part.made else first - 1
    numbers = range(first + part.worker, _ENDLESS, part.workers)[part.made :]
    found = yield from pass_batches(builder, share, begin, place, behind, numbers, passes.drop_last)
    if not found and again and behind >= 0:
        numbers = range(part.worker, _ENDLESS, part.workers)
        yield from pass_batches(builder, share, begin, begin, -1, numbers, passes.drop_last)


def pass_batches(
    builder: BatchBuilder, share: Share, begin: Place, place: Place, behind: int, numbers: range, drop_last: bool
) -> Generator[Item, None, bool]:
    """This rank's batches of these numbers, as far as there are rows, each with its `stream_state`.

    begin       of the pass, in lane 0
    place       behind batch `behind` of the rank; -1: none
    drop_last   leave out a step that rows do not fill, instead of padding it

    Returns whether any rank or worker has a batch left behind `behind`.
    """
    lane = builder.lane(0, place)
    size, accumulation = share.grid.global_batch_size, share.grad_accum
    resumed_at = at = _rows_before(share, behind)
    next_step = (behind + 1) // accumulation
    try:
        for step, of_step in groupby(numbers, lambda number: number // accumulation):
            at += lane.skip(step * size - at)
            first, rows = at, lane.give((step + 1) * size - at)
            at += rows_in(rows)
            if not at:
                raise PilekitError(
                    "no document of the corpus is left in the pass by subsets, repeats, dedup and filters; `pilekit "
                    "stats` shows what there is"
                )
            if at <= step * size or (drop_last and at < (step + 1) * size):
                break
            for number in of_step:
                wanted = _first_row(share, number)
                given = rows_between(rows, wanted - first, wanted - first + share.batch_size)
                after = lane.place
                if given and (number + 1) % accumulation:
                    last = given[-1]
                    after = Place(*last.window.after[last.first_row + last.count - 1].tolist())
                missing = share.batch_size - rows_in(given)
                if missing and builder.writer is None:  # documents as they are: the pass's first ones once more
                    total = at if at > resumed_at else _rows_of_pass(builder, begin)
                    given += _rows_again(builder, begin, (wanted + share.batch_size - missing) % total, missing)
                yield builder.batch(share, number, given, np.zeros(1, np.int64), np.array([after], np.int64))
        return at >= (next_step + 1) * size if drop_last else at > next_step * size
    finally:
        lane.close()


def _rows_before(share: Share, number: int) -> int:
    """How many rows of the pass lie before the place behind a rank's batch; 0 for batch -1."""
    if (number + 1) % share.grad_accum:
        return _first_row(share, number) + share.batch_size
    return (number + 1) // share.grad_accum * share.grid.global_batch_size


def _first_row(share: Share, number: int) -> int:
    """The first row of a rank's batch."""
    step, part = divmod(number, share.grad_accum)
    return step * share.grid.global_batch_size + (share.rank * share.grad_accum + part) * share.batch_size


def _rows_of_pass(builder: BatchBuilder, begin: Place) -> int:
    lane = builder.lane(0, begin)
    try:
        return lane.skip(_ENDLESS)
    finally:
        lane.close()


def _rows_again(builder: BatchBuilder, begin: Place, row: int, count: int) -> list[RowRange]:
    """The pass's rows from number `row` on, and again from its first one where it ends."""
    found: list[RowRange] = []
    while count:
        lane = builder.lane(0, begin)
        try:
            lane.skip(row)
            given = lane.give(count)
        finally:
            lane.close()
        if not given:
            raise PilekitError("the documents of the pass cannot be read again; give drop_last=True, or save them")
        found += given
        count, row = count - rows_in(given), 0
    return found
