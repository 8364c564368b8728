"""Resolve candidates: the exact similarity of each document to kept documents, in keeper order.

Documents are decided one after the other in keeper order, the order of their ranks: of similar documents the first is
kept. Each is compared with its kept candidates. If any reaches the threshold, the document is removed, and an edge
names the most similar kept candidate (of equals, the first in keeper order). So each removal has its proof, and each of
a hundred near-copies is compared with one document, not with ninety-nine.

A run of 100,000 documents with one licence header cannot be compared pair by pair: it is hot (matching.py). A member of
a hot run is compared with up to 128 kept members of its run, the representatives. If they are full, a new one replaces
the representative that resembled no document for the longest time. So the cost is linear in the run's length, and a run
with near-copies of at most 128 documents misses nothing.

A dropped representative is rarely missed. When the longest document is kept, later documents are shorter, mostly too
short to resemble it. Also, two similar documents mostly share other bands too, in which their run is short.

In the kernel, set sizes determine how many shingles two sets must share for the threshold. The merge of two sorted sets
stops when that number is out of reach; it has no branches and takes 1.5 ns a value. A hot run is stored as one word of
state (the number of representatives in the low half, `_DROPPED` or `_UNSURE` in the high half), then the rank of each
representative, the most recently used first.

Decisions depend on the candidates and the threshold alone, not on memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pilekit.artifacts.sort.external_sort import Table, whole_runs
from pilekit.artifacts.sort.scratch_files import scratch_array
from pilekit.dedup.document_table import REMOVABLE, Flags
from pilekit.dedup.matching import Candidates
from pilekit.dedup.shingle_store import WORD, MappedSets, ShingleStore, find_set
from pilekit.dedup.sketch.shingles import Int64, UInt64, shared_if_enough
from pilekit.workers import Advance
from pilekit.workers.kernels import compiled

MOST_REPRESENTATIVES = 128
_MOST_TOUCHED = 16 << 20
"""Bytes of sets that are compared between two checks of the mapped memory."""
_RECENT = 1 << 12
"""Size of the table of documents already compared with the current document; a forgotten document is compared again."""

_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_DROPPED, _UNSURE = np.uint64(1), np.uint64(2)
"""States of a run: it dropped a representative; a document may resemble a dropped representative."""

_ROWS, _COMPARED, _HOT_RUNS, _HOT_DOCUMENTS, _TOUCHED = range(5)
"""Places in `counts`."""
_COUNTS = 5


class ComparisonCounts(NamedTuple):
    """How much was compared.

    compared        pairs of shingle sets
    hot_runs        runs with so many kept members that others were not compared with all of them
    hot_documents   kept documents that were not compared with all earlier kept members of such a run
    """

    compared: int
    hot_runs: int
    hot_documents: int


def resolve(
    candidates: Candidates,
    store: ShingleStore,
    threshold: float,
    folder: Path,
    add: Callable[[Table], None],
    advance: Advance = lambda amount: None,
) -> ComparisonCounts:
    """Decide all candidates; returns how much was compared.

    folder    for flags and representatives, in files without names
    add       receives the edges: (rank of the removed document, rank of a kept one, bits of the float64 similarity),
              ascending
    advance   receives the number of further candidates that were decided
    """
    counts, removed = np.zeros(_COUNTS, dtype=np.int64), scratch_array(folder, np.bool_, len(candidates.flagged))
    hot_runs = np.concatenate([np.empty((2, 0), dtype=np.uint64), *candidates.runs], axis=1)
    hashes, first = np.unique(hot_runs[0], return_index=True)
    # Each hot run gets a word of state and as many words for representatives as it may need.
    words = np.minimum(hot_runs[1, first], 1 + MOST_REPRESENTATIVES)
    begins = (np.cumsum(words) - words).astype(np.int64)
    representatives = scratch_array(folder, np.uint64, int(words.sum()))
    undecided = candidates.count
    for ranks, run_hashes, partners in whole_runs(candidates.rows.chunks()):
        # A row of a member of a hot run gets the place of the run's words, and their number.
        places = np.full(len(ranks), -1)
        members = np.flatnonzero(run_hashes)
        runs = np.searchsorted(hashes, run_hashes[members])
        places[members], partners[members] = begins[runs], words[runs]
        counts[_ROWS] = 0
        while counts[_ROWS] < len(ranks):
            counts[_TOUCHED] = 0
            add(_decide_rows(ranks, places, partners, store.mapped, threshold, representatives, removed, counts))
            store.release_if_full()
        undecided -= len(ranks)
        advance(len(ranks))
    advance(undecided)  # `count` counts a row each time it was found; each was decided once
    return ComparisonCounts(*counts[[_COMPARED, _HOT_RUNS, _HOT_DOCUMENTS]].tolist())


@compiled()
def least_shared(first_size: int, second_size: int, threshold: float) -> int:
    """Least number of shared shingles for which sets of these sizes reach the threshold; may be more than they have.

    The least `shared` with `shared / (first_size + second_size - shared) >= threshold`, both as float64.
    """
    total = first_size + second_size
    shared = int(threshold * total / (1 + threshold))
    while shared > 0 and (shared - 1) / (total - shared + 1) >= threshold:
        shared -= 1
    while shared <= min(first_size, second_size) and shared / (total - shared) < threshold:
        shared += 1
    return shared


@compiled()
def _similarity(first: UInt64, second: UInt64, threshold: float, counts: Int64) -> float:
    """The similarity of two sets; 0 if it is below the threshold."""
    smaller, larger = min(len(first), len(second)), max(len(first), len(second))
    if smaller < np.int64(threshold * larger):
        return 0.0
    enough = least_shared(len(first), len(second), threshold)
    if enough > smaller:
        return 0.0
    counts[_COMPARED] += 1
    counts[_TOUCHED] += WORD * len(second) + 4096
    shared = shared_if_enough(first, second, enough)
    return 0.0 if shared < 0 else shared / (len(first) + len(second) - shared)


@compiled()
def _decide_rows(
    ranks: UInt64,
    runs: Int64,
    partners: UInt64,
    mapped: MappedSets,
    threshold: float,
    representatives: UInt64,
    removed: Flags,
    counts: Int64,
) -> Table:
    """Decide documents; returns (rank, rank of a kept document, bits of the similarity) of each removed document.

    ranks             the documents to decide, ascending; a row for each candidate pair, then one for each hot run
    runs              -1 for a pair, or the begin of the run in `representatives`
    partners          the earlier rank of a pair, or the number of words of the run
    removed           a flag for each id
    counts            `_ROWS`: how many rows are decided; `_TOUCHED`: bytes of sets read. Returns early when these are
                      about 16 MB, so that the mapped memory is checked
    """
    end = counts[_ROWS]
    edges = np.empty((3, len(ranks) - end), dtype=np.uint64)
    similarities = edges[2].view(np.float64)
    recent, recent_for = np.zeros(_RECENT, dtype=np.uint64), np.zeros(_RECENT, dtype=np.uint64)
    edge_count = 0
    while counts[_TOUCHED] < _MOST_TOUCHED and end < len(ranks):
        begin, rank = end, ranks[end]
        while end < len(ranks) and ranks[end] == rank:
            end += 1
        removable = rank >= REMOVABLE
        values = find_set(mapped, int(rank & _LOW))
        counts[_TOUCHED] += WORD * len(values)
        best, best_similarity = rank, 0.0
        for row in range(begin, end if removable else begin):
            if runs[row] < 0:
                candidates = partners[row : row + 1]
            else:
                run = representatives[runs[row] : runs[row] + np.int64(partners[row])]
                candidates = run[1 : 1 + np.int64(run[0] & _LOW)]
            for candidate in candidates:
                at = np.int64(candidate & np.uint64(_RECENT - 1))
                if (recent[at] == candidate and recent_for[at] == rank) or removed[candidate & _LOW]:
                    continue
                recent[at], recent_for[at] = candidate, rank
                similarity = _similarity(values, find_set(mapped, int(candidate & _LOW)), threshold, counts)
                if similarity > best_similarity or (0 < similarity == best_similarity and candidate < best):
                    best, best_similarity = candidate, similarity
        if best_similarity > 0:
            edges[0, edge_count], edges[1, edge_count], similarities[edge_count] = rank, best, best_similarity
            edge_count += 1
            removed[rank & _LOW] = True
        unsure = False
        for row in range(begin, end):
            if runs[row] >= 0:
                run = representatives[runs[row] : runs[row] + np.int64(partners[row])]
                if best_similarity > 0:
                    _move_to_front(run, best)
                else:
                    unsure |= _add_representative(run, rank, removable, counts)
        counts[_HOT_DOCUMENTS] += int(unsure)
    counts[_ROWS] = end
    return edges[:, :edge_count]


@compiled()
def _add_representative(run: UInt64, rank: np.uint64, removable: bool, counts: Int64) -> bool:
    """Make a kept document a representative; returns whether it may resemble a dropped representative."""
    count, state = int(run[0] & _LOW), run[0] >> _HALF
    unsure = removable and state != np.uint64(0)
    if unsure:
        counts[_HOT_RUNS] += int(state == _DROPPED)
        state = _UNSURE
    elif count == len(run) - 1:
        state = max(state, _DROPPED)
    count = min(count + 1, len(run) - 1)
    for place in range(count, 1, -1):
        run[place] = run[place - 1]
    run[1] = rank
    run[0] = np.uint64(count) | state << _HALF
    return unsure


@compiled()
def _move_to_front(run: UInt64, rank: np.uint64) -> None:
    """Put a representative first, if it is one."""
    for old_place in range(1, np.int64(run[0] & _LOW) + 1):
        if run[old_place] == rank:
            for place in range(old_place, 1, -1):
                run[place] = run[place - 1]
            run[1] = rank
            return
