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

from collections.abc import Generator
from itertools import groupby

import numpy as np
import torch

from pilekit.errors import PilekitError, visible
from pilekit.stream.batch import Batch, OpenBatch
from pilekit.stream.grid import Share
from pilekit.stream.lane import Given, Lane, Layout, Place, counts
from pilekit.stream.lane_documents import LaneSource
from pilekit.stream.making import Form
from pilekit.stream.state import batch_state

_SKIPPED_AT_ONCE = 64
"""Rows of others are passed over in small parts, so that their windows are not kept."""


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


def made(
    source: LaneSource,
    layout: Layout,
    share: Share,
    form: Form,
    place: Place,
    behind: int,
    numbers: range,
    drop_last: bool,
) -> Generator[Batch, None, bool]:
    """The rank's batches of these numbers, as far as there are samples, each with its `stream_state`.

    source     its lane 0 ends
    place      of that lane, behind batch `behind` of the rank; -1: none
    drop_last  leave out a step that samples do not fill, rather than pad it

    Returns whether there was any batch, of whichever rank and worker, behind `behind`.
    """
    lane = Lane(source, 0, place, layout)
    whole, accumulation = share.grid.global_batch_size, share.grad_accum
    at, first = samples_behind(share, behind), (behind + 1) // accumulation
    try:
        for step, parts in groupby(numbers, lambda number: number // accumulation):
            kept: list[tuple[int, list[Given], Place]] = []
            for number in parts:
                at += _skipped(lane, slice_of(share, number) - at)
                given = lane.give(share.batch_size)
                at += _rows(given)
                kept.append((number, given, lane.place))
            at += _skipped(lane, (step + 1) * whole - at)
            if not at:
                raise PilekitError(
                    "no document of the corpus is left in the pass by subsets, repeats, dedup and filters; `pilekit "
                    "stats` shows what there is"
                )
            if at <= step * whole or (drop_last and at < (step + 1) * whole):
                break
            for number, given, after in kept:
                if number % accumulation == accumulation - 1:
                    after = lane.place
                yield _batch(layout, share, form, number, given, after)
            del kept, given
        return at >= (first + 1) * whole if drop_last else at > first * whole
    finally:
        lane.close()


def _batch(layout: Layout, share: Share, form: Form, number: int, given: list[Given], after: Place) -> Batch:
    batch = OpenBatch(
        share.batch_size,
        layout.seq_len,
        form.outputs,
        pad_id=form.pad_id,
        eos_id=form.eos_id,
        append_eod=layout.append_eod,
        masking=form.masking,
    )
    for rows in given:
        batch.fill(rows.window, rows.first_row, rows.count)
    filled = batch.filled
    batch.pad(batch.left)
    skipped, *counted = counts(given, form.subsets)
    state = batch_state(number, np.zeros(1, np.int64), np.array([after], np.int64), filled, skipped, *counted)
    return batch.close(layout.shard_names, torch.from_numpy(state))


def _skipped(lane: Lane, count: int) -> int:
    """Pass over the lane's next `count` rows; returns how many there were."""
    left = count
    while left > 0:
        asked = min(left, _SKIPPED_AT_ONCE)
        found = _rows(lane.give(asked))
        left -= found
        if found < asked:
            break
    return count - left


def _rows(given: list[Given]) -> int:
    return sum(some.count for some in given)


def check_epochs(epochs: object, lanes: object, samples_per_epoch: object) -> None:
    """PilekitError for an `epochs` that is no number, and for what it cannot stand beside."""
    if epochs is None:
        return
    if type(epochs) is not int or epochs < 1:
        raise PilekitError(f"epochs is a whole number from 1 on, or None, not {visible(repr(epochs), 80)}")
    for name, value, default in (("lanes", lanes, "auto"), ("samples_per_epoch", samples_per_epoch, None)):
        if value != default:
            raise PilekitError(
                f"epochs={epochs} and {name}={visible(repr(value), 80)} exclude each other: a pass that ends has no "
                f"lanes; leave out one of them"
            )
