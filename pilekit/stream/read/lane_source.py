"""The source of a grid's lanes, and the grid of a new run, by the plan of the stream's documents."""

from __future__ import annotations

from pilekit.stream.order.lane_grid import COLUMNS, default_rows
from pilekit.stream.order.unit_sequence import Sequence
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.read.random_access import RandomAccess
from pilekit.stream.read.sequential import Sequential, default_grid


def lane_source(selected: StreamDocuments, lanes: int, unit: int, end: int | None = None) -> LaneSource:
    """The source of the lanes; `end`: the position at which they end, for a finite pass."""
    if selected.count is None:
        return Sequential(selected, lanes, end)
    units = Sequence(selected.count, unit, selected.copies, selected.seed, lanes, selected.shuffle)
    return RandomAccess(selected, units, end)


def default_lanes(
    selected: StreamDocuments, global_batch_size: int, world_size: int, grad_accum: int
) -> tuple[int, int]:
    """(R, M) of a new run."""
    if selected.count is None:
        return default_grid(len(selected.corpus.shards), world_size)
    return default_rows(global_batch_size, world_size, grad_accum), COLUMNS
