"""`SubsetCounts`: how often each phrase occurs in each subset of a shard, and in how many documents.

A pair of a phrase and a subset that occurs takes a cell of 24 bytes, however often it occurs. The first cell of each
phrase has a place of its own, and holds the subset that was counted last. A list of further cells holds the others.

`PhraseTable.find` gives the longest phrase at a place. Only its occurrence is counted at once. `rows` adds it to the
phrase's ancestors, which begin there too. Documents are counted up the line of ancestors, as far as the first that this
document was counted for: then it was counted for all behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.trace.phrase_kernel import Bytes, Int32, Int64, UInt32, parent_of, prefetch
from pilekit.trace.phrase_table import PhraseTable
from pilekit.workers.kernels import compiled

_CELL = np.dtype(
    [("occurrences", "i8"), ("following", "i4"), ("documents", "i4"), ("last", "i4"), ("subset", "u2")], align=True
)
"""`following`: the next cell of the phrase, or 0; `last`: the number of the last document."""
Cells = npt.NDArray[Any]

_AT_A_TIME = 1024
"""Occurrences whose memory is asked for together; more would drive each other out of the cache."""


class SubsetCounts:
    """Counts of one shard.

    room   further cells to begin with; None: one for each phrase
    """

    def __init__(self, table: PhraseTable, room: int | None = None):
        self._table = table
        phrases = len(table.number)
        self._cells: Cells = np.zeros(phrases + (phrases + 1024 if room is None else room), _CELL)
        self._used, self._documents = phrases, 1

    def add(self, data: Bytes, offsets: Int64, subsets: Int64) -> None:
        """Count documents, given as for `PhraseTable.find`, and the number of each one's subset, below 2^16."""
        table = self._table
        for found in table.find(data, offsets):
            done = 0
            while done < len(found):
                if self._used + table.depth > len(self._cells):
                    more = np.zeros(2 * len(self._cells) + table.depth, _CELL)
                    more[: self._used] = self._cells[: self._used]  # Memory that was not written to takes no room.
                    self._cells = more
                done, self._used = _count(
                    *(found, done, subsets, self._documents, table.rows, table.depth, self._cells, self._used)
                )
        self._documents += len(subsets)

    def rows(self) -> Int64:
        """Phrase's number << 16 | subset, ascending; occurrences; documents; int64 [3, pairs].

        Call it once, at the end: it lets go of the table.
        """
        table_rows, number = self._table.rows, self._table.number
        del self._table
        rows = np.empty((3, int(np.count_nonzero(self._cells["documents"]))), np.int64)
        _write_rows(table_rows, number, self._cells, rows)
        order = np.argsort(rows[0])
        for row in rows:
            row[:] = row[order]
        return rows


@compiled()
def _count(
    found: Int32, begin: int, subsets: Int64, first: int, rows: UInt32, depth: int, cells: Any, used: int
) -> tuple[int, int]:
    """Count what was found from `begin` on, as far as there are cells; returns where it stopped, and the cells used."""
    while begin < len(found):
        end = min(begin + _AT_A_TIME, len(found))
        for i in range(begin, end):
            prefetch(cells, found[i, 0])
        for i in range(begin, end):
            if used + depth > len(cells):
                return i, used
            phrase, parent, name = found[i, 0], found[i, 1], subsets[found[i, 2]]
            document, more = first + found[i, 2], 1
            while True:
                if cells[phrase].documents == 0:
                    cells[phrase].subset = name
                elif cells[phrase].subset != name:
                    other = cells[phrase].following
                    while other and cells[other].subset != name:
                        other = cells[other].following
                    if not other:
                        other = used
                        used += 1
                        cells[other].subset, cells[other].following = name, cells[phrase].following
                        cells[phrase].following = other
                    _swap(cells, phrase, other)
                cells[phrase].occurrences += more
                more = 0
                if cells[phrase].last == document:
                    break
                cells[phrase].last = document
                cells[phrase].documents += 1
                if parent < 0:
                    break
                phrase, parent = parent, parent_of(rows, parent)
        begin = end
    return len(found), used


@compiled()
def _swap(cells: Any, first: int, second: int) -> None:
    """Let two cells of a list change their content, and stay where they are in the list."""
    one, other = cells[first], cells[second]
    one.occurrences, other.occurrences = other.occurrences, one.occurrences
    one.documents, other.documents = other.documents, one.documents
    one.last, other.last = other.last, one.last
    one.subset, other.subset = other.subset, one.subset


@compiled()
def _write_rows(table_rows: UInt32, number: Int32, cells: Any, rows: Int64) -> None:
    """Add occurrences to the parents, which stand before their children, and write the rows."""
    count = 0
    for phrase in range(len(number) - 1, -1, -1):
        if cells[phrase].documents == 0:
            continue
        cell, parent = phrase, parent_of(table_rows, phrase)
        while True:
            if parent >= 0:
                above = parent
                while cells[above].subset != cells[cell].subset:
                    above = cells[above].following
                cells[above].occurrences += cells[cell].occurrences
            rows[0, count] = np.int64(number[phrase]) << 16 | np.int64(cells[cell].subset)
            rows[1, count], rows[2, count] = cells[cell].occurrences, cells[cell].documents
            count += 1
            cell = cells[cell].following
            if not cell:
                break
