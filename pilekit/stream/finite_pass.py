"""Finite passes: every row once, shared among ranks and workers that do not communicate.

A finite pass has one lane, because several lanes would end at different steps. Every rank and worker packs this one
lane, and keeps its own rows by their number. With G rows in a step, row i belongs to step i div G. A step has W x a
equal parts, and part r x a + b is micro-batch b of rank r. The number of rows alone says whether a step exists and how
much of it is padding. So all ranks make the same number of batches. Rows without documents fill the last step, or the
step is dropped.

Each worker of a rank makes every n-th batch, and tokenizes every document for it. Use an endless stream with lanes
where that would cost too much.

The place after a batch is the place after its last row. After the last micro-batch of a step it is the end of the step,
the same on all ranks. So the number of rows before a place follows from the batch's number, and a pass can resume
between steps with other numbers of ranks, workers and micro-batches.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import msgspec
import numpy as np

from pilekit.errors import PilekitError
from pilekit.stream.batch.build_batches import BatchBuilder, Item
from pilekit.stream.order.lane_grid import Positive, Share
from pilekit.stream.pack.lane import rows_between, rows_in
from pilekit.stream.pack.window import Place, Window
from pilekit.stream.record import WorkerPart

MOST_EPOCHS = 1 << 27
"""A larger number of an epoch is a mistake. Up to it, the places of a pass fit into 64 bits."""


Epoch = Annotated[int, msgspec.Meta(ge=0, le=MOST_EPOCHS)]


@dataclass(frozen=True)
class Passes:
    """The epochs of one iteration: `epochs` epochs of the shared sequence; the first is number `epoch`.

    drop_last   leave out an incomplete last step instead of padding it
    """

    epochs: Positive
    drop_last: bool
    epoch: Epoch = 0

    def borders(self, positions: int) -> tuple[int, int]:
        """The first position of the iteration and the one after its last; `positions` is the number in an epoch."""
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
    """The remaining batches of this worker's part. Batch `first` of the rank begins at `place`.

    begin   where the pass begins in lane 0
    again   whether the pass begins once more if neither a rank nor a worker has a batch left
    """
    numbers = part.numbers(first)
    behind = numbers.start - part.workers if part.given_batches else first - 1
    has_more = yield from pass_batches(builder, share, begin, place, behind, numbers, passes.drop_last)
    if not has_more and again and behind >= 0:
        numbers = part._replace(given_batches=0).numbers(0)
        yield from pass_batches(builder, share, begin, begin, -1, numbers, passes.drop_last)


def pass_batches(
    builder: BatchBuilder, share: Share, begin: Place, place: Place, behind: int, numbers: range, drop_last: bool
) -> Generator[Item, None, bool]:
    """This rank's batches with these numbers, until the rows end; each batch has its `stream_state`.

    begin       where the pass begins in lane 0
    behind      the rank's batch just before `place`; -1: no batch
    drop_last   leave out an incomplete step instead of padding it

    Returns whether any rank or worker has a batch left after `behind`.
    """
    size, accumulation = share.grid.global_batch_size, share.grad_accum
    resumed_at = at = _rows_before(share, behind)
    next_step = (behind + 1) // accumulation
    with builder.lane(0, place, at) as lane:
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
                batch_begin = _first_row(share, number)
                windows = rows_between(rows, batch_begin - first, batch_begin - first + share.batch_size)
                after = lane.place
                if windows and (number + 1) % accumulation:
                    after = Place.of(windows[-1].after[-1])
                missing = share.batch_size - rows_in(windows)
                if missing and builder.writer is None:  # untokenized: the first documents of the pass again
                    row = batch_begin + share.batch_size - missing
                    windows += _rows_again(builder, begin, row % at if at > resumed_at else row, missing)
                yield builder.batch(
                    share, number, windows, np.zeros(1, np.int64), np.array([after.numbers()], np.int64)
                )
        return at >= (next_step + 1) * size if drop_last else at > next_step * size


def _rows_before(share: Share, number: int) -> int:
    """The number of rows of the pass before the place after the rank's batch `number`; 0 for batch -1."""
    if (number + 1) % share.grad_accum:
        return _first_row(share, number) + share.batch_size
    return (number + 1) // share.grad_accum * share.grid.global_batch_size


def _first_row(share: Share, number: int) -> int:
    """The first row of a rank's batch."""
    step, part = divmod(number, share.grad_accum)
    return step * share.grid.global_batch_size + (share.rank * share.grad_accum + part) * share.batch_size


def _rows_again(builder: BatchBuilder, begin: Place, row: int, count: int) -> list[Window]:
    """`count` rows of the pass from number `row` on; the first row follows the last."""
    windows: list[Window] = []
    while count:
        with builder.lane(0, begin, 0) as lane:
            passed, next_windows = lane.skip(row), lane.give(count)
        if not passed and not next_windows:
            raise PilekitError("the documents of the pass cannot be read again; give drop_last=True, or save them")
        windows += next_windows
        count, row = count - rows_in(next_windows), row - passed
    return windows
