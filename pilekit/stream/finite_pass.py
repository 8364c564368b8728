"""Finite passes: every sample once, shared among ranks and workers that do not talk to each other.

There are no lanes, as no two of them would end at one step. Every consumer packs the same single sequence, lane 0 of 1,
and keeps its samples by index. With G samples in a step, sample i belongs to step i div G; of the W x a equal slices of
a step, number r x a + b is micro-batch b of rank r. Whether a step exists and how much of it is padding follows from
the number of samples alone, which all come to know at the same step: so all make the same number of batches. Of the
last step, what is missing is filled with rows without documents, or the whole step is dropped.

A rank's batches are dealt to its workers one by one, any number of them. That each of them tokenizes everything is the
price; passes that are long enough for it to matter are for lanes.

The place behind a batch is behind its last sample; behind the last micro-batch of a step it is the end of the step, for
all ranks alike. So the number of samples before a place follows from the batch's number, and a pass that is left
between steps goes on with other ranks, workers and accumulation, from the window that lies there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from pilekit.errors import PilekitError, visible
from pilekit.stream.batch.build_batches import BatchBuilder, passed_over
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.pack.lane import Place
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.worker_part import WorkerPart

_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Passes:
    """What an iteration goes through: `epochs` epochs of the shared sequence, from number `epoch` on.

    drop_last   leave out a last step that samples do not fill, rather than pad it
    """

    epochs: int
    drop_last: bool
    epoch: int = 0

    def borders(self, positions: int) -> tuple[int, int]:
        """The first position, and the one behind the last, where an epoch has so many."""
        return self.epoch * positions, (self.epoch + self.epochs) * positions


def part_of(
    source: LaneSource,
    builder: BatchBuilder,
    share: Share,
    begin: Place,
    place: Place,
    first: int,
    part: WorkerPart,
    drop_last: bool,
    again: bool,
) -> Generator[Any, None, None]:
    """The rest of this part of the rank's batches, from batch `first` on, which begins at `place`.

    begin   of the pass, in lane 0 of the source
    again   if nothing is left for any rank and worker, give this part of the whole pass
    """
    behind = first + part.worker + (part.made - 1) * part.workers if part.made else first - 1
    numbers = range(first + part.worker, _ENDLESS, part.workers)[part.made :]
    found = yield from _made(source, builder, share, begin, place, behind, numbers, drop_last)
    if not found and again and behind >= 0:
        numbers = range(part.worker, _ENDLESS, part.workers)
        yield from _made(source, builder, share, begin, begin, -1, numbers, drop_last)


def samples_behind(share: Share, number: int) -> int:
    """How many samples of the sequence lie before the place behind a rank's batch; 0 for batch -1."""
    step, part = divmod(number, share.grad_accum)
    if part == share.grad_accum - 1:
        return (step + 1) * share.grid.global_batch_size
    return slice_of(share, number) + share.batch_size


def slice_of(share: Share, number: int) -> int:
    """The first sample of a rank's batch."""
    step, part = divmod(number, share.grad_accum)
    return step * share.grid.global_batch_size + (share.rank * share.grad_accum + part) * share.batch_size


def _made(
    source: LaneSource,
    builder: BatchBuilder,
    share: Share,
    begin: Place,
    place: Place,
    behind: int,
    numbers: range,
    drop_last: bool,
) -> Generator[Any, None, bool]:
    """The rank's batches of these numbers, as far as there are samples, each with its `stream_state`.

    source     its lane 0 ends
    begin      of the pass, in that lane
    place      behind batch `behind` of the rank; -1: none
    drop_last  leave out a step that samples do not fill, rather than pad it

    Returns whether there was any batch, of whichever rank and worker, behind `behind`.
    """
    lane = builder.lane(source, 0, place)
    whole, accumulation = share.grid.global_batch_size, share.grad_accum
    at, first = samples_behind(share, behind), (behind + 1) // accumulation
    try:
        for step, parts in groupby(numbers, lambda number: number // accumulation):
            kept: list[tuple[int, list[Any], Place]] = []
            for number in parts:
                at += passed_over(lane, slice_of(share, number) - at)
                given = list(lane.give(share.batch_size))
                at += _samples(given)
                kept.append((number, given, lane.place))
            at += passed_over(lane, (step + 1) * whole - at)
            if not at:
                raise PilekitError(
                    "no document of the corpus is left in the pass by subsets, repeats, dedup and filters; `pilekit "
                    "stats` shows what there is"
                )
            if at <= step * whole or (drop_last and at < (step + 1) * whole):
                break
            for number, given, after in kept:
                if builder.padded_by_first and (missing := share.batch_size - _samples(given)):
                    if at == samples_behind(share, behind):  # The place is the end, so `at` says only that.
                        at = min(at, _all(source, builder, begin))
                    beyond = slice_of(share, number) + share.batch_size - missing - at
                    given += _once_more(source, builder, begin, beyond % at, missing)
                place = lane.place if number % accumulation == accumulation - 1 else after
                yield builder.batch(share, number, given, np.zeros(1, np.int64), np.array([place], np.int64))
            del kept, given
        return at >= (first + 1) * whole if drop_last else at > first * whole
    finally:
        lane.close()


def _all(source: LaneSource, builder: BatchBuilder, begin: Place) -> int:
    """How many samples the pass has."""
    lane = builder.lane(source, 0, begin)
    try:
        return passed_over(lane, _ENDLESS)
    finally:
        lane.close()


def _once_more(source: LaneSource, builder: BatchBuilder, begin: Place, sample: int, count: int) -> list[Any]:
    """The pass's samples from number `sample` on, and again from its first one where it ends."""
    found: list[Any] = []
    while count:
        lane = builder.lane(source, 0, begin)
        try:
            passed_over(lane, sample)
            given = list(lane.give(count))
        finally:
            lane.close()
        if not given:
            raise PilekitError("the documents of the pass cannot be read once more; give drop_last=True, or save them")
        found += given
        count, sample = count - _samples(given), 0
    return found


def _samples(given: Sequence[Any]) -> int:
    return sum(some.count for some in given)


def check_epochs(epochs: object, lanes: object) -> None:
    """PilekitError for an `epochs` that is no whole number, and for `lanes` beside it."""
    if epochs is None:
        return
    if type(epochs) is not int or epochs < 1:
        raise PilekitError(f"epochs is a whole number from 1 on, or None, not {visible(repr(epochs), 80)}")
    if lanes != "auto":
        raise PilekitError(
            f"epochs={epochs} and lanes={visible(repr(lanes), 80)} exclude each other: a pass that ends has no lanes; "
            "leave out one of them"
        )
