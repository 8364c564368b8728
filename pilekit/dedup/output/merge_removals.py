"""All that goes: the near-duplicates that were found, and the exact copies, each with the kept document it resembles.

Edges (rank of a removed document, rank of its partner, similarity) come in the keeper order, decided by resolve.py. An
exact copy goes with the document that stands for its text: where that is kept, it is a copy of it; where that is
removed, it is a near-duplicate of the same partner, with the same similarity.

A bit for each document is all that is held: edges, copies and removals stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilekit.dedup.bits import Bits, get_bits, no_bits, read_bits, set_bits, write_bits
from pilekit.dedup.match.exact import ExactCopies
from pilekit.dedup.match.external_sort import RowSort
from pilekit.dedup.match.population import Ranks
from pilekit.dedup.match.rows import Rows, Table, write_rows

EXACT, NEAR = 0, 1
"""Why a document was removed, as a number in `Decisions.removals`."""

_BITS = "removed.bits"
_EQUAL = np.float64(1).view(np.uint64)
_ID = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Decisions:
    """What is removed and why, on disk."""

    folder: Path
    documents: int

    @property
    def removals(self) -> Rows:
        """(removed id, kept id, bits of the float64 similarity, `EXACT` or `NEAR`), ascending."""
        return Rows(self.folder / "removals.rows", 4)

    def bits(self) -> Bits:
        """A bit for each document, set for those that are removed; by id."""
        return read_bits(self.folder / _BITS, self.documents)


def choose(edges: Iterable[Table], copies: ExactCopies, folder: Path, memory: int) -> Decisions:
    """Join near-duplicates and copies, and write what is removed into `folder`.

    edges     (rank of a removed document, rank of a kept one, bits of the float64 similarity), uint64 [3, edges] at a
              time, ascending, one for each document; none of them of a document in `copies.bits`
    memory    bytes that may be used, beside a bit for each document

    Files of the same edges and copies that are complete are taken as they are.
    """
    decisions = Decisions(folder, copies.documents)
    if decisions.removals.path.exists():
        return decisions
    folder.mkdir(parents=True, exist_ok=True)
    removed = no_bits(copies.documents)
    with RowSort(folder, 4, memory) as removals:
        for table in _with_copies(edges, copies.pairs.chunks()):
            set_bits(removed, table[0].astype(np.uint32))
            # What is before it in the keeper order is known by now: nothing goes on account of what goes itself.
            if get_bits(removed, table[1].astype(np.uint32)).any():
                raise ValueError("a document is removed on account of a removed one")
            removals.add(table)
        # The removals get their name last: when they are there, all is.
        write_bits(folder / _BITS, removed)
        write_rows(decisions.removals.path, 4, removals.chunks())
    return decisions


def _with_copies(edges: Iterable[Table], copies: Iterator[Table]) -> Iterator[Table]:
    """(removed id, kept id, similarity, reason) of all documents that are removed.

    copies    (rank of the document that stands for the text, rank of the copy), ascending
    """
    waiting = np.empty((2, 0), dtype=np.uint64)
    before = np.uint64(0)
    for near in edges:
        if not near.shape[1]:
            continue
        removed, last = near[0], near[0, -1]
        if removed[0] < before or (removed[1:] <= removed[:-1]).any():
            raise ValueError("edges are not in ascending order")
        before = last + np.uint64(1)
        yield _removals(removed, near[1], near[2], NEAR)
        while True:
            if not waiting.shape[1]:
                more = next(copies, None)
                if more is None:
                    break
                waiting = more
            # Those of documents up to the last that these edges are about; if one was removed, it is among them.
            ready = int(np.searchsorted(waiting[0], last, side="right"))
            keeper, copy = waiting[:, :ready]
            waiting = waiting[:, ready:]
            at = np.searchsorted(removed, keeper)
            gone = removed[at] == keeper
            at = at[gone]
            yield _removals(copy[gone], near[1, at], near[2, at], NEAR)
            yield _exact(keeper[~gone], copy[~gone])
            if waiting.shape[1]:
                break
    yield _exact(*waiting)
    for keeper, copy in copies:
        yield _exact(keeper, copy)


def _exact(keeper: Ranks, copy: Ranks) -> Table:
    return _removals(copy, keeper, np.full_like(keeper, _EQUAL), EXACT)


def _removals(removed: Ranks, kept: Ranks, similarity: Ranks, reason: int) -> Table:
    return np.stack([removed & _ID, kept & _ID, similarity, np.full_like(removed, reason)])
