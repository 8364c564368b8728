"""Resolve candidates: the exact similarity of each document to kept documents, in keeper order.

Documents are decided one after the other in keeper order, the order of their ranks: of similar documents the first is
kept. Each is compared with its kept candidates. If any reaches the threshold, the document is removed, and an edge
names the most similar kept candidate (of equals, the first in keeper order). So each removal has its proof, and each of
a hundred near-copies is compared with one document, not with ninety-nine.

A run of 100,000 documents with one licence header cannot be compared pair by pair: it is hot (candidates.py). A member
of a hot run is compared with up to 128 kept members of its run, the representatives. A new representative replaces the
one that has resembled nothing for longest. So the cost is linear in the run's length, and a run with near-copies of at
most 128 documents misses nothing.

A dropped representative is rarely missed. When the longest document is kept, later documents are shorter, mostly too
short to resemble it. Besides, two similar documents mostly share other bands too, in which their run is short.

Decisions depend on the candidates and the threshold alone, not on memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pilekit.artifacts.external_sort import Table, whole_runs
from pilekit.dedup.compare.jaccard_kernels import (
    COMPARED,
    COUNTS,
    HOT_DOCUMENTS,
    HOT_RUNS,
    MOST_REPRESENTATIVES,
    ROWS,
    TOUCHED,
    decide,
)
from pilekit.dedup.compare.shingle_store import ShingleStore
from pilekit.dedup.match.candidates import Candidates
from pilekit.dedup.scratch_space import scratch_array
from pilekit.workers import Advance

_MOST_TOUCHED = 16 << 20
"""Bytes of sets that are compared between two checks of the mapped memory."""


class Counts(NamedTuple):
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
    memory: int,
    add: Callable[[Table], None],
    *,
    advance: Advance = lambda amount: None,
) -> Counts:
    """Decide all candidates; returns how much was compared.

    folder    for flags and representatives, in files without names
    memory    bytes of the store that may be mapped
    add       receives the edges: (rank of the removed document, rank of a kept one, bits of the float64 similarity),
              ascending
    advance   receives the number of further candidates that were decided
    """
    counts, removed = np.zeros(COUNTS, dtype=np.int64), scratch_array(folder, np.bool_, len(candidates.flagged))
    hot_runs = np.concatenate([np.empty((2, 0), dtype=np.uint64), *candidates.runs], axis=1)
    hashes, first = np.unique(hot_runs[0], return_index=True)
    # Each hot run gets a word of state and as many words for representatives as it may need.
    words = np.minimum(hot_runs[1, first], 1 + MOST_REPRESENTATIVES)
    begins = (np.cumsum(words) - words).astype(np.int64)
    representatives = scratch_array(folder, np.uint64, int(words.sum()))
    left, unmapped = candidates.count, _mapped_bytes()
    for ranks, run_hashes, others in whole_runs(candidates.rows.chunks()):
        # A row of a member of a hot run gets the place of the run's words, and their number.
        places = np.full(len(ranks), -1)
        members = np.flatnonzero(run_hashes)
        runs = np.searchsorted(hashes, run_hashes[members])
        places[members], others[members] = begins[runs], words[runs]
        counts[ROWS] = 0
        while counts[ROWS] < len(ranks):
            counts[TOUCHED] = 0
            sets, most = store.mapped, _MOST_TOUCHED
            add(decide(ranks, places, others, sets, threshold, representatives, removed, most, counts))
            if _mapped_bytes() - unmapped > memory:
                store.release()
                unmapped = _mapped_bytes()
        left -= len(ranks)
        advance(len(ranks))
    advance(left)  # `count` counts a row each time it was found; each was decided once
    return Counts(*counts[[COMPARED, HOT_RUNS, HOT_DOCUMENTS]].tolist())


def _mapped_bytes() -> int:
    """Bytes of mapped files in this process's memory."""
    return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2])
