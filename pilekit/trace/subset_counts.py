"""`SubsetCounts`: how often each phrase occurs in each subset of a shard, and in how many documents.

A pair of a phrase and a subset that occurs takes a cell of 24 bytes, in a list of its phrase's cells. The cell that was
used last is the first of its list. A phrase that occurs millions of times takes no more.

`PhraseTable.find` gives the longest phrase at a place. Only its occurrence is counted at once. `rows` adds it to the
phrase's ancestors, which begin there too. Documents are counted up the line of ancestors, as far as the first that this
document was counted for: then it was counted for all behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.trace.phrase_kernel import Bytes, Int32, Int64, prefetch
from pilekit.trace.phrase_table import PhraseTable
from pilekit.workers.kernels import compiled

_CELL = np.dtype(
    [("occurrences", "i8"), ("following", "i4"), ("documents", "i4"), ("last", "i4"), ("subset", "u2")], align=True
)
"""`following`: the next cell of the phrase, or 0; `last`: the number of the last document."""
Cells = npt.NDArray[Any]


class SubsetCounts:
    """Counts of one shard."""

    def __init__(self, table: PhraseTable, cells: int = 1024):
        self._table = table
        self._heads = np.zeros(len(table.parent), np.int32)
        self._cells: Cells = np.zeros(cells, _CELL)
        self._used, self._documents = 1, 1

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
                    *(found, done, subsets, self._documents, table.parent, table.depth, self._heads),
                    *(self._cells, self._used),
                )
        self._documents += len(subsets)

    def rows(self) -> Int64:
        """Phrase's number << 16 | subset, ascending; occurrences; documents; int64 [3, pairs].

        Call it once, at the end: it lets go of the table.
        """
        rows, parent, number = np.empty((3, self._used - 1), np.int64), self._table.parent, self._table.number
        del self._table
        _write_rows(parent, number, self._heads, self._cells, rows)
        order = np.argsort(rows[0])
        for row in rows:
            row[:] = row[order]
        return rows


@compiled()
def _count(
    found: Int32,
    begin: int,
    subsets: Int64,
    first: int,
    parent: Int32,
    depth: int,
    heads: Int32,
    cells: Any,
    used: int,
) -> tuple[int, int]:
    """Count what was found from `begin` on, as far as there are cells; returns where it stopped, and the cells used."""
    for i in range(begin, len(found)):
        prefetch(heads, found[i, 0])
    for i in range(begin, len(found)):
        prefetch(cells, heads[found[i, 0]])
        prefetch(parent, found[i, 0])
    for i in range(begin, len(found)):
        if used + depth > len(cells):
            return i, used
        phrase, name, document = found[i, 0], subsets[found[i, 1]], first + found[i, 1]
        more = 1
        while phrase >= 0:
            cell, before = heads[phrase], 0
            while cell and cells[cell].subset != name:
                before, cell = cell, cells[cell].following
            if not cell:
                cell = used
                used += 1
                cells[cell].subset, cells[cell].following, heads[phrase] = name, heads[phrase], cell
            elif before:
                cells[before].following = cells[cell].following
                cells[cell].following, heads[phrase] = heads[phrase], cell
            cells[cell].occurrences += more
            more = 0
            if cells[cell].last == document:
                break
            cells[cell].last = document
            cells[cell].documents += 1
            phrase = parent[phrase]
    return len(found), used


@compiled()
def _write_rows(parent: Int32, number: Int32, heads: Int32, cells: Any, rows: Int64) -> None:
    """Add occurrences to the parents, which stand before their children, and write the rows."""
    count = 0
    for phrase in range(len(heads) - 1, -1, -1):
        cell = heads[phrase]
        while cell:
            if parent[phrase] >= 0:
                above = heads[parent[phrase]]
                while cells[above].subset != cells[cell].subset:
                    above = cells[above].following
                cells[above].occurrences += cells[cell].occurrences
            rows[0, count] = np.int64(number[phrase]) << 16 | np.int64(cells[cell].subset)
            rows[1, count], rows[2, count] = cells[cell].occurrences, cells[cell].documents
            count += 1
            cell = cells[cell].following
