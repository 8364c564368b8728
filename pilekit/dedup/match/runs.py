"""Runs of documents that share a band key: candidate pairs of the short ones, lists of members of the long ones.

(key, rank) rows come in ascending order, in tables that may end anywhere. Of a run of up to 64 documents every pair is
a candidate. A longer run is hot: all its pairs would be too many, so its members are listed, in the order in which they
are kept, and compared with representatives later.

Documents that are much alike share many bands, and so the same run comes again and again. A table of fixed size
remembers the 128-bit hashes of runs that were seen lately; one that is seen again is passed over at once. A run that it
has forgotten costs time, no more: pairs and lists are made distinct afterwards.

Two documents of the earlier run (bit 63 of the rank clear) are no pair: neither could be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.match.rows import Table
from pilekit.dedup.sketch.shingles import UInt64, mixed
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

HOT = 64
"""Runs of more documents than this are hot."""

_ROWS_AT_A_TIME = 1 << 12
"""There may be 32 pairs for each."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OWN = np.uint64(63)

# The open run, as it goes from call to call: its key; how many members it has so far, the last of them, the two halves
# of their hash; and, if it is hot, where they begin among all members that were listed.
_KEY, _COUNT, _LAST, _HIGH, _LOW, _BEGIN = range(6)


class Found(NamedTuple):
    """What some rows contained."""

    pairs: Table
    """(later rank, earlier rank), uint64 [2, pairs]."""
    members: UInt64
    """Ranks of members of hot runs, run after run, each ascending; a run may begin in one `Found` and end in the next.
    Some may belong to a run that is not listed, because it was seen before."""
    hot: Table
    """(high, low, length, begin) of the hot runs that ended here: the hash of its members, their number, and where they
    begin among all members so far; uint64 [4, runs]."""


def seen_runs(documents: int, memory: int) -> UInt64:
    """A table for the runs of so many documents seen lately, in at most so many bytes; threads may share it."""
    runs = max(1, min(documents, memory // 16))
    table = np.empty((1 << (runs.bit_length() - 1), 2), dtype=np.uint64)
    table.fill(0)  # so that it may lie on large pages
    return table


def walk_runs(tables: Iterable[Table], seen: UInt64) -> Iterator[Found]:
    """Walk through (key, rank) rows in ascending order; what few thousand of them contain at a time."""
    run, first = np.zeros(6, dtype=np.uint64), np.empty(HOT, dtype=np.uint64)
    before = 0

    def step(keys: UInt64, ranks: UInt64, *, end: bool = False) -> Found:
        nonlocal before
        rows = len(keys)
        pairs = np.empty((2, (rows + HOT) * HOT // 2), dtype=np.uint64)
        members = np.empty(rows + HOT, dtype=np.uint64)
        hot = np.empty((4, rows // HOT + 1), dtype=np.uint64)
        counts = np.zeros(3, dtype=np.int64)
        _walk(keys, ranks, end, run, first, seen, np.uint64(before), pairs, members, hot, counts)
        before += int(counts[1])
        return Found(pairs[:, : counts[0]], members[: counts[1]], hot[:, : counts[2]])

    for keys, ranks in tables:
        for begin in range(0, len(keys), _ROWS_AT_A_TIME):
            some = slice(begin, begin + _ROWS_AT_A_TIME)
            yield step(keys[some], ranks[some])
    nothing = np.empty(0, dtype=np.uint64)
    yield step(nothing, nothing, end=True)


@compiled()
def _walk(
    keys: UInt64,
    ranks: UInt64,
    end: bool,
    run: UInt64,
    first: UInt64,
    seen: UInt64,
    before: np.uint64,
    pairs: Table,
    members: UInt64,
    hot: Table,
    counts: Int64,
) -> None:
    """Go on with the open run.

    first     its first members, uint64 [64]
    before    how many members were listed in earlier calls
    counts    how many pairs, members and hot runs are written: set
    """
    for i in range(len(keys)):
        if run[_COUNT] == np.uint64(0) or keys[i] != run[_KEY]:
            if run[_COUNT] > np.uint64(1):  # most have one: a call with seven arrays takes 60 ns
                _end_run(run, first, seen, before, pairs, hot, counts)
            run[_KEY] = keys[i]
            run[_COUNT] = run[_HIGH] = run[_LOW] = np.uint64(0)
        rank, count = ranks[i], np.int64(run[_COUNT])
        if count < HOT:
            first[count] = rank
        else:
            if count == HOT:
                run[_BEGIN] = before + np.uint64(counts[1])
                members[counts[1] : counts[1] + HOT] = first
                counts[1] += HOT
                _hash(run, first)
            members[counts[1]] = rank
            counts[1] += 1
            _hash(run, ranks[i : i + 1])
        run[_COUNT] += np.uint64(1)
        run[_LAST] = rank
    if end and run[_COUNT] > np.uint64(1):
        _end_run(run, first, seen, before, pairs, hot, counts)


@compiled()
def _end_run(
    run: UInt64, first: UInt64, seen: UInt64, before: np.uint64, pairs: Table, hot: Table, counts: Int64
) -> None:
    count = np.int64(run[_COUNT])
    if count <= HOT:
        _hash(run, first[:count])
    # The last member is of this corpus, not of the earlier run, if any is.
    wanted = run[_LAST] >> _OWN != np.uint64(0) and _is_new(seen, run[_HIGH], run[_LOW])
    if count > HOT:
        if wanted:
            hot[0, counts[2]], hot[1, counts[2]] = run[_HIGH], run[_LOW]
            hot[2, counts[2]], hot[3, counts[2]] = run[_COUNT], run[_BEGIN]
            counts[2] += 1
        elif run[_BEGIN] >= before:
            counts[1] = np.int64(run[_BEGIN] - before)
    elif wanted:
        for later in range(1, count):
            if first[later] >> _OWN:
                for earlier in range(later):
                    pairs[0, counts[0]], pairs[1, counts[0]] = first[later], first[earlier]
                    counts[0] += 1


@compiled()
def _hash(run: UInt64, ranks: UInt64) -> None:
    for rank in ranks:
        run[_HIGH] = mixed(run[_HIGH] ^ rank)
        run[_LOW] = mixed((run[_LOW] + rank) * _ODD)


@compiled()
def _is_new(seen: UInt64, high: np.uint64, low: np.uint64) -> bool:
    """Whether a run is not among those seen lately; it is from now on."""
    place = high & np.uint64(len(seen) - 1)
    # Another thread may be writing here: then the entry is of neither run, and one that was seen is taken for new.
    if seen[place, 0] == high and seen[place, 1] == low:
        return False
    seen[place, 0], seen[place, 1] = high, low
    return True
