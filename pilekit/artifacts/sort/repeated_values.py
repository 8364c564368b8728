"""Sort only the documents that share a value with another document: two passes over all values filter out the others.

Most documents share no text and no band key with any other, and sorting is the main cost of matching. So only values
that may be repeated are sorted. A table has many places of two bits: one for "hit", one for "hit again". The first pass
hashes each value to a place and marks it. The second pass picks the values whose place was hit again.

A repeated value is always picked. A unique value is picked if another value hit its place: with eight places for each
value, that happens to 12 % of them. A smaller table lets more through and changes no result.

A pass takes 12 ns for each value with 20 million documents (sorting takes 200).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.sort.external_sort import RowSort, Table
from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.workers.kernels import compiled

UInt64 = npt.NDArray[np.uint64]

_PLACES_PER_VALUE = 8
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def repeated_rows(
    chunks: Callable[[Sequence[str]], Iterator[tuple[UInt64, dict[str, UInt64]]]],
    groups: Sequence[Sequence[str]],
    documents: int,
    scratch: Scratch,
) -> Iterator[Iterator[Table]]:
    """For each group of columns: (values, rank) of all documents that may share their values, ascending.

    chunks    ranks and these columns of all documents; the filter looks at the first column of each group
    scratch   its memory is for each group
    """
    size = min(repeated_bytes(documents), scratch.memory // 3)
    tables = [repeated_table(size) for _ in groups]
    for _, columns in chunks([group[0] for group in groups]):
        for group, table in zip(groups, tables, strict=True):
            note_values(table, columns[group[0]])
    with ExitStack() as stack:
        sorts = [
            stack.enter_context(RowSort(scratch.folder, len(group) + 1, scratch.memory - size)) for group in groups
        ]
        for ranks, columns in chunks([name for group in groups for name in group]):
            for group, table, sort in zip(groups, tables, sorts, strict=True):
                indices = may_be_repeated(table, columns[group[0]])
                sort.add(np.stack([*(columns[name][indices] for name in group), ranks[indices]]))
        tables.clear()
        for sort in sorts:
            yield sort.chunks()
            sort.close()


def repeated_bytes(values: int) -> int:
    """Bytes that a table for this many values should have; a byte has four places."""
    return 8 + values * _PLACES_PER_VALUE // 4


def repeated_table(memory: int) -> UInt64:
    """An empty table of at most this many bytes and of at most 2^32 places; a word has 32."""
    table = np.empty(max(1, min(memory, 1 << 30) // 8), dtype=np.uint64)
    table.fill(0)  # not np.zeros: so the system can use large pages, which halves the time
    return table


@compiled()
def _place(table: UInt64, value: np.uint64) -> np.uint64:
    """The value's place: the high half of its hash, scaled to the number of places."""
    return ((value * _SPREAD) >> np.uint64(32)) * np.uint64(32 * len(table)) >> np.uint64(32)


@compiled()
def note_values(table: UInt64, values: UInt64) -> None:
    """First pass: mark the place of each value."""
    for value in values:
        place = _place(table, value)
        word = table[place >> np.uint64(5)]
        hit = np.uint64(1) << ((place & np.uint64(31)) << np.uint64(1))
        table[place >> np.uint64(5)] = word | hit | ((word & hit) << np.uint64(1))


@compiled()
def may_be_repeated(table: UInt64, values: UInt64) -> npt.NDArray[np.int64]:
    """Second pass: the indices of the values that may have been noted more than once."""
    repeated = np.empty(len(values), dtype=np.int64)
    count = 0
    for i in range(len(values)):
        place = _place(table, values[i])
        several = np.uint64(2) << ((place & np.uint64(31)) << np.uint64(1))
        repeated[count] = i
        count += int((table[place >> np.uint64(5)] & several) != np.uint64(0))
    return repeated[:count]
