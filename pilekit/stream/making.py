"""Making batches: the lanes that a rank's share of the grid names, read in turn.

A batch depends on the grid, on who asks for it, and on the places of the lanes that it reads; so a DataLoader's worker
that makes every n-th batch needs to know nothing of what the others do.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pilekit.stream.batch import Batch, OpenBatch
from pilekit.stream.grid import Grid, Share
from pilekit.stream.hashes import Int64
from pilekit.stream.lane import Given, Lane, Layout, Place, counts
from pilekit.stream.lane_documents import LaneSource
from pilekit.stream.mlm import Masking
from pilekit.stream.state import batch_state


@dataclass(frozen=True)
class Form:
    """What batches hold: arguments of `OpenBatch`, and how many subsets there are."""

    outputs: Sequence[str]
    pad_id: int
    eos_id: int
    masking: Masking | None
    subsets: int


def made(
    source: LaneSource, layout: Layout, share: Share, form: Form, places: Int64, numbers: range
) -> Generator[Batch, None, None]:
    """The batches of these numbers, each with its `stream_state`; a part of them that leaves each lane to one maker.

    places   int64 [L, 3]: where the lanes stand before the first of `numbers` that reads them
    """
    lanes: dict[int, Lane] = {}
    try:
        for number in numbers:
            read = share.read_by(number)
            given: list[Given] = []
            after = np.empty((len(read), 3), np.int64)
            for index, lane in enumerate(read.tolist()):
                if lane not in lanes:
                    lanes[lane] = Lane(source, lane, Place(*places[lane].tolist()), layout)
                given += lanes[lane].give(share.per_lane)
                after[index] = lanes[lane].place
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
            skipped, *counted = counts(given, form.subsets)
            state = batch_state(number, read, after, batch.filled, skipped, *counted)
            yield batch.close(layout.shard_names, torch.from_numpy(state))
    finally:
        for lane in lanes.values():
            lane.close()


def identities(
    source: LaneSource, layout: Layout, grid: Grid, step: int, begun: Mapping[int, tuple[Place, int]]
) -> list[list[tuple[str, int]]]:
    """The documents of optimizer step `step`: for each of its samples, (shard name, document number) by doc_id.

    begun   for each lane of the step's column where to begin to count, and how many rows are given from there before
    """
    found = []
    for lane in range(step % grid.columns, grid.lanes, grid.columns):
        place, before = begun[lane]
        reading = Lane(source, lane, place, layout)
        try:
            while before > 0:  # in small parts, so that windows behind are not kept
                reading.give(min(before, 64))
                before -= 64
            for given in reading.give(grid.per_visit):
                rows, window = given.window.rows, given.window
                for row in range(given.first_row, given.first_row + given.count):
                    documents = rows.document[rows.start[row] : rows.start[row + 1]]
                    shards, numbers = window.shards[documents].tolist(), window.numbers[documents].tolist()
                    found.append([(layout.shard_names[s], n) for s, n in zip(shards, numbers, strict=True)])
        finally:
            reading.close()
    return found
