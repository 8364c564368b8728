"""Decide documents in keeper order, each by its exact similarity to kept candidates: the kernel of `resolve.py`.

Set sizes determine how many shingles two sets must share for the threshold. The merge of two sorted sets stops when
that number is out of reach; it has no branches and takes 1.5 ns a value.

Members of hot runs are compared with representatives: up to 128 kept members of the run, most recently used first. A
run is stored as one word of state (the number of representatives in the low half, `_LET_GO` or `_UNSURE` in the high
half), then the rank of each representative.
"""

from __future__ import annotations

import numpy as np

from pilekit.artifacts.external_sort import Table
from pilekit.dedup.compare.shingle_store import WORD, MappedSets, find_set
from pilekit.dedup.match.document_table import REMOVABLE, Flags
from pilekit.dedup.sketch.shingles import Int64, UInt64, shared_if_enough
from pilekit.workers.kernels import compiled

MOST_REPRESENTATIVES = 128

_LATELY = 1 << 12
"""Size of the table of documents already compared with the current document; a forgotten document is compared again."""

_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_LET_GO, _UNSURE = np.uint64(1), np.uint64(2)
"""States of a run: it dropped a representative; a document may resemble a dropped representative."""

ROWS, COMPARED, HOT_RUNS, HOT_DOCUMENTS, TOUCHED = range(5)
"""Places in `counts`."""
COUNTS = 5


@compiled()
def needed(one: int, other: int, threshold: float) -> int:
    """Least number of shared shingles for which sets of these sizes reach the threshold; may be more than they have.

    The least `shared` with `shared / (one + other - shared) >= threshold`, both as float64.
    """
    total = one + other
    shared = int(threshold * total / (1 + threshold))
    while shared > 0 and (shared - 1) / (total - shared + 1) >= threshold:
        shared -= 1
    while shared <= min(one, other) and shared / (total - shared) < threshold:
        shared += 1
    return shared


@compiled()
def _similarity(one: UInt64, other: UInt64, threshold: float, counts: Int64) -> float:
    """The similarity of two sets; 0 if it is below the threshold."""
    smaller, larger = min(len(one), len(other)), max(len(one), len(other))
    if smaller < np.int64(threshold * larger):
        return 0.0
    enough = needed(len(one), len(other), threshold)
    if enough > smaller:
        return 0.0
    counts[COMPARED] += 1
    counts[TOUCHED] += WORD * len(other) + 4096
    shared = shared_if_enough(one, other, enough)
    return 0.0 if shared < 0 else shared / (len(one) + len(other) - shared)


@compiled()
def decide(
    ranks: UInt64,
    runs: Int64,
    others: UInt64,
    mapped: MappedSets,
    threshold: float,
    representatives: UInt64,
    removed: Flags,
    most_touched: int,
    counts: Int64,
) -> Table:
    """Decide documents; returns (rank, rank of a kept document, bits of the similarity) of each removed document.

    ranks             the documents to decide, ascending; a row for each candidate pair, then one for each hot run
    runs              -1 for a pair, or the begin of the run in `representatives`
    others            the earlier rank of a pair, or the words of the run
    removed           a flag for each id
    most_touched      return when about this many bytes of sets were read
    counts            `ROWS`: how many rows are decided; `TOUCHED`: bytes of sets read
    """
    end = counts[ROWS]
    edges = np.empty((3, len(ranks) - end), dtype=np.uint64)
    similarities = edges[2].view(np.float64)
    lately, lately_for = np.zeros(_LATELY, dtype=np.uint64), np.zeros(_LATELY, dtype=np.uint64)
    found = 0
    while counts[TOUCHED] < most_touched and end < len(ranks):
        begin, rank = end, ranks[end]
        while end < len(ranks) and ranks[end] == rank:
            end += 1
        removable = rank >= REMOVABLE
        values = find_set(mapped, int(rank & _LOW))
        counts[TOUCHED] += WORD * len(values)
        best, best_similarity = rank, 0.0
        for row in range(begin, end if removable else begin):
            if runs[row] < 0:
                candidates = others[row : row + 1]
            else:
                run = representatives[runs[row] : runs[row] + np.int64(others[row])]
                candidates = run[1 : 1 + np.int64(run[0] & _LOW)]
            for other in candidates:
                at = np.int64(other & np.uint64(_LATELY - 1))
                if (lately[at] == other and lately_for[at] == rank) or removed[other & _LOW]:
                    continue
                lately[at], lately_for[at] = other, rank
                similarity = _similarity(values, find_set(mapped, int(other & _LOW)), threshold, counts)
                if similarity > best_similarity or (0 < similarity == best_similarity and other < best):
                    best, best_similarity = other, similarity
        if best_similarity > 0:
            edges[0, found], edges[1, found], similarities[found] = rank, best, best_similarity
            found += 1
            removed[rank & _LOW] = True
        unsure = False
        for row in range(begin, end):
            if runs[row] >= 0:
                run = representatives[runs[row] : runs[row] + np.int64(others[row])]
                if best_similarity > 0:
                    _to_front(run, best)
                else:
                    unsure |= _add(run, rank, removable, counts)
        counts[HOT_DOCUMENTS] += int(unsure)
    counts[ROWS] = end
    return edges[:, :found]


@compiled()
def _add(run: UInt64, rank: np.uint64, removable: bool, counts: Int64) -> bool:
    """Make a kept document a representative; returns whether it may resemble a dropped representative."""
    held, state = int(run[0] & _LOW), run[0] >> _HALF
    unsure = removable and state != np.uint64(0)
    if unsure:
        counts[HOT_RUNS] += int(state == _LET_GO)
        state = _UNSURE
    elif held == len(run) - 1:
        state = max(state, _LET_GO)
    held = min(held + 1, len(run) - 1)
    for place in range(held, 1, -1):
        run[place] = run[place - 1]
    run[1] = rank
    run[0] = np.uint64(held) | state << _HALF
    return unsure


@compiled()
def _to_front(run: UInt64, rank: np.uint64) -> None:
    """Put a representative first, if it is one."""
    for found in range(1, np.int64(run[0] & _LOW) + 1):
        if run[found] == rank:
            for place in range(found, 1, -1):
                run[place] = run[place - 1]
            run[1] = rank
            return
