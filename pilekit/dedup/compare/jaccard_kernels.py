"""Decide documents in keeper order, each by its exact similarity to kept candidates: the kernel of `resolve.py`.

The sizes of two sets tell how many shingles they must share for the threshold. Sorted sets are merged only as far as
that number can still be reached; the merge has no branches, and takes 1.5 ns a value.

Members of hot runs are compared with representatives: kept members of the run, at most 128 of them, the one that was of
use last first. A run of n members has n words, the first for its state (how many representatives it holds in the low
half, what became of others in the high half), then their ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.dedup.bits import Bits, bit_is_set, set_bit
from pilekit.dedup.compare.shingle_store import WORD, MappedSets, find_set, words_at
from pilekit.dedup.match.rows import Table
from pilekit.dedup.sketch.shingles import UInt64
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

MOST_REPRESENTATIVES = 128

_STEPS = 32
"""Steps of a merge between two looks at whether enough shingles can still be shared."""
_LATELY = 1 << 12
"""So many documents that the current one was compared with are remembered; a forgotten one is compared again."""

_OWN, _HALF, _LOW = np.uint64(63), np.uint64(32), np.uint64(0xFFFFFFFF)
_LET_GO, _UNSURE = np.uint64(1), np.uint64(2)
"""States of a run: it let go of a representative; and a document may resemble one of these."""

PAIRS, MEMBERS, COMPARED, HOT_RUNS, HOT_DOCUMENTS, MAPPED = range(6)
"""Places in `counts`."""
COUNTS = 6

_FAULT = 1 << 16
"""The system maps up to about so many bytes around each set that is looked at."""


@compiled()
def needed(one: int, other: int, threshold: float) -> int:
    """How many shingles sets of these sizes must share for a similarity of `threshold`; more than they have: none do.

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
def shared_if_enough(one: UInt64, other: UInt64, enough: int) -> int:
    """How many values two sorted sets share, or -1 if fewer than `enough`."""
    i = j = shared = 0
    while True:
        left = min(len(one) - i, len(other) - j)
        if shared + left < enough:
            return -1
        if left == 0:
            return shared
        for _ in range(min(_STEPS, left)):
            first, second = one[i], other[j]
            shared += int(first == second)
            i += int(first <= second)
            j += int(second <= first)


@compiled()
def _note_mapped(mapped: MappedSets, address: np.uint64, size: int, counts: Int64) -> None:
    """Count the bytes that looking at a set maps, if it was not looked at lately."""
    window = address >> np.uint64(16)
    place = int(window & np.uint64(len(mapped.looked_at) - 1))
    if mapped.looked_at[place] != window:
        mapped.looked_at[place] = window
        counts[MAPPED] += WORD * size + _FAULT


@compiled()
def _similarity(mapped: MappedSets, one: UInt64, other: np.uint64, threshold: float, counts: Int64) -> float:
    """The similarity of a set and that of the document with rank `other`; 0 if it is below the threshold."""
    address, size = find_set(mapped, int(other & _LOW))
    enough = needed(len(one), size, threshold)
    if enough > min(len(one), size):
        return 0.0
    counts[COMPARED] += 1
    _note_mapped(mapped, address, size, counts)
    shared = shared_if_enough(one, words_at(address, size), enough)
    return 0.0 if shared < 0 else shared / (len(one) + size - shared)


@compiled()
def decide(
    pairs: Table,
    members: Table,
    mapped: MappedSets,
    threshold: float,
    representatives: UInt64,
    removed: Bits,
    most_mapped: int,
    counts: Int64,
) -> Table:
    """Decide documents; returns (rank, rank of a kept document, bits of the similarity) of the removed ones.

    pairs             (later rank, earlier rank) of candidate pairs, ascending; all of a later document
    members           (rank, begin of its run among the members of all runs, length of the run), ascending; all of a
                      document
    representatives   words of all runs, those of a run from its begin on
    removed           a bit per id
    most_mapped       return after so many bytes of sets were mapped
    counts            `PAIRS` and `MEMBERS`: how many of them are decided; `MAPPED`: bytes of sets mapped, about
    """
    i, j = counts[PAIRS], counts[MEMBERS]
    edges = np.empty((3, pairs.shape[1] - i + members.shape[1] - j), dtype=np.uint64)
    similarities = edges[2].view(np.float64)
    lately, lately_for = np.zeros(_LATELY, dtype=np.uint64), np.zeros(_LATELY, dtype=np.uint64)
    found = 0
    while counts[MAPPED] < most_mapped and (i < pairs.shape[1] or j < members.shape[1]):
        if j == members.shape[1] or (i < pairs.shape[1] and pairs[0, i] < members[0, j]):
            rank = pairs[0, i]
        else:
            rank = members[0, j]
        pairs_begin, members_begin = i, j
        while i < pairs.shape[1] and pairs[0, i] == rank:
            i += 1
        while j < members.shape[1] and members[0, j] == rank:
            j += 1
        own = rank >> _OWN != np.uint64(0)
        address, size = find_set(mapped, int(rank & _LOW))
        values = words_at(address, size)
        _note_mapped(mapped, address, size, counts)
        best, best_similarity = rank, 0.0
        for source in range(members_begin - 1, j if own else members_begin - 1):
            if source < members_begin:
                others = pairs[1, pairs_begin:i]
            else:
                begin = int(members[1, source])
                others = representatives[begin + 1 : begin + 1 + int(representatives[begin] & _LOW)]
            for other in others:
                at = np.int64(other & np.uint64(_LATELY - 1))
                if (lately[at] == other and lately_for[at] == rank) or bit_is_set(removed, np.uint32(other & _LOW)):
                    continue
                lately[at], lately_for[at] = other, rank
                similarity = _similarity(mapped, values, other, threshold, counts)
                if similarity > best_similarity or (0 < similarity == best_similarity and other < best):
                    best, best_similarity = other, similarity
        if best_similarity > 0:
            edges[0, found], edges[1, found], similarities[found] = rank, best, best_similarity
            found += 1
            set_bit(removed, np.uint32(rank & _LOW))
        unsure = False
        for member in range(members_begin, j):
            begin, length = int(members[1, member]), int(members[2, member])
            run = representatives[begin : begin + min(length, 1 + MOST_REPRESENTATIVES)]
            if best_similarity > 0:
                _to_front(run, best)
            else:
                unsure |= _add(run, rank, own, counts)
        counts[HOT_DOCUMENTS] += int(unsure)
    counts[PAIRS], counts[MEMBERS] = i, j
    return edges[:, :found]


@compiled()
def _add(run: UInt64, rank: np.uint64, own: bool, counts: Int64) -> bool:
    """Make a kept document a representative; returns whether it may resemble one that the run has let go of."""
    held, state = int(run[0] & _LOW), run[0] >> _HALF
    unsure = own and state != np.uint64(0)
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
