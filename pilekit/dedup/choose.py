"""Which documents go, and which kept document each of them resembles.

Edges (later rank, earlier rank, similarity) come in ascending order, so when a document's edges are read, all documents
before it in the keeper order are decided. It is removed if one of its earlier neighbours is kept, and only then: no
chain removes a document that resembles none that stays. Its partner is the most similar of those, of equally similar
ones the first in the keeper order.

An exact copy goes with the document that stands for its text: where that is kept, it is a copy of it; where that is
removed, it is a near-duplicate of the same partner, with the same similarity. Nothing of the earlier run is removed.

The decisions are a function of the edges and copies alone. A bit for each document is all that is held: edges, copies
and removals stream. Two million edges and as many removals take 0.3 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pilekit.dedup.bits import Bits, bit_is_set, no_bits, read_bits, set_bit, set_bits, write_bits
from pilekit.dedup.exact import ExactCopies
from pilekit.dedup.population import Ranks
from pilekit.dedup.rows import AT_A_TIME, Rows, Table, write_rows
from pilekit.dedup.shingles import UInt64
from pilekit.dedup.spill import RowSort
from pilekit.kernels import compiled

EXACT, NEAR = 0, 1
"""Why a document was removed, as a number in `Decisions.removals`."""

_BITS = "removed.bits"
_EQUAL = np.float64(1).view(np.uint64)
_OWN = np.uint64(63)
_ID = np.uint64(0xFFFFFFFF)

# The document whose edges are being read: its rank, and the best of its earlier neighbours that are kept; a similarity
# of 0 if there is none.
_RANK, _PARTNER, _SIMILARITY = range(3)


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
    """Decide about all documents, and write the decisions into `folder`.

    edges     (later rank, earlier rank, bits of the float64 similarity), uint64 [3, edges] at a time, ascending by the
              first: the pairs that reach the threshold; none of them of a document in `copies.bits`
    memory    bytes that may be used, beside a bit for each document

    Files of the same edges and copies that are complete are taken as they are.
    """
    decisions = Decisions(folder, copies.documents)
    if decisions.removals.path.exists():
        return decisions
    folder.mkdir(parents=True, exist_ok=True)
    removed = no_bits(copies.documents)
    with RowSort(folder, 4, memory) as removals:
        for table in _with_copies(_decided(edges, removed), copies.pairs.chunks()):
            set_bits(removed, table[0].astype(np.uint32))
            removals.add(table)
        # The removals get their name last: when they are there, all is.
        write_bits(folder / _BITS, removed)
        write_rows(decisions.removals.path, 4, removals.chunks())
    return decisions


class _Decided(NamedTuple):
    """What some edges decided."""

    removed: Table
    """(rank, rank of its partner, similarity) of near-duplicates, ascending; uint64 [3, documents]."""
    until: np.uint64 | None
    """All documents before this rank are decided by now; None: all."""


def _decided(edges: Iterable[Table], removed: Bits) -> Iterator[_Decided]:
    """What the edges decide, in the keeper order; sets the bits of those that are removed."""
    document = np.zeros(3, dtype=np.uint64)
    for table in edges:
        for begin in range(0, table.shape[1], AT_A_TIME):
            later, earlier, similarity = table[:, begin : begin + AT_A_TIME]
            out = np.empty((3, len(later)), dtype=np.uint64)
            count = _decide(later, earlier, similarity, document, removed, out)
            if count < 0:
                raise ValueError("edges are not in ascending order")
            yield _Decided(out[:, :count], document[_RANK])
    out = np.empty((3, 1), dtype=np.uint64)
    yield _Decided(out[:, : _decide_document(document, removed, out, 0)], None)


def _with_copies(decided: Iterable[_Decided], copies: Iterator[Table]) -> Iterator[Table]:
    """(removed id, kept id, similarity, reason) of all documents that are removed.

    copies    (keeper, copy), ascending
    """
    waiting = np.empty((2, 0), dtype=np.uint64)
    for removed, until in decided:
        yield _removals(removed[0], removed[1], removed[2], NEAR)
        while True:
            if not waiting.shape[1]:
                more = next(copies, None)
                if more is None:
                    break
                waiting = more
            ready = waiting.shape[1] if until is None else int(np.searchsorted(waiting[0], until))
            keeper, copy = waiting[:, :ready]
            waiting = waiting[:, ready:]
            # A keeper was decided since the last time, so if it was removed, it is among these.
            at = np.searchsorted(removed[0], keeper)
            near = at < removed.shape[1]
            near[near] = removed[0, at[near]] == keeper[near]
            at = at[near]
            yield _removals(copy[near], removed[1, at], removed[2, at], NEAR)
            yield _removals(copy[~near], keeper[~near], np.full_like(keeper[~near], _EQUAL), EXACT)
            if waiting.shape[1]:
                break


def _removals(removed: Ranks, kept: Ranks, similarity: Ranks, reason: int) -> Table:
    return np.stack([removed & _ID, kept & _ID, similarity, np.full_like(removed, reason)])


@compiled()
def _decide(later: UInt64, earlier: UInt64, similarity: UInt64, document: UInt64, removed: Bits, out: Table) -> int:
    """Go on with the open document; returns how many were removed, -1 if edges are not in order."""
    count = 0
    for i in range(len(later)):
        if later[i] < document[_RANK] or earlier[i] >= later[i]:
            return -1
        if later[i] != document[_RANK]:
            count = _decide_document(document, removed, out, count)
            document[_RANK], document[_SIMILARITY] = later[i], np.uint64(0)
        kept = not bit_is_set(removed, np.uint32(earlier[i] & _ID))
        alike = similarity[i] == document[_SIMILARITY] and earlier[i] < document[_PARTNER]
        if kept and (similarity[i] > document[_SIMILARITY] or alike):
            document[_PARTNER], document[_SIMILARITY] = earlier[i], similarity[i]
    return count


@compiled()
def _decide_document(document: UInt64, removed: Bits, out: Table, count: int) -> int:
    """All edges of the open document were read: remove it if it has a partner and is not of the earlier run."""
    rank = document[_RANK]
    if document[_SIMILARITY] == np.uint64(0) or rank >> _OWN == np.uint64(0):
        return count
    set_bit(removed, np.uint32(rank & _ID))
    out[0, count], out[1, count], out[2, count] = rank, document[_PARTNER], document[_SIMILARITY]
    return count + 1
