"""`SubsetCounts`: how often each phrase occurs in each subset of a shard, and in how many documents.

A pair of a phrase and a subset that occurs takes a cell of 26 bytes, in a list of its phrase's cells. The cell that was
used last is the first of its list. A phrase that occurs millions of times takes no more.

`PhraseTable.find` gives the longest phrase at a place. Only its occurrence is counted at once. `rows` adds it to the
phrase's ancestors, which begin there too. Documents are counted up the line of ancestors, as far as the first that this
document was counted for: then it was counted for all behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.trace.phrase_kernel import Bytes, Int32, Int64
from pilekit.trace.phrase_table import PhraseTable
from pilekit.workers.kernels import compiled

_KINDS = (np.uint16, np.int32, np.int64, np.int64, np.int32)
"""Of each cell: subset, next cell of the phrase or 0, occurrences, documents, number of the last document."""


class SubsetCounts:
    """Counts of one shard."""

    def __init__(self, table: PhraseTable, cells: int = 1024):
        self._table = table
        self._heads = np.zeros(len(table.parent), np.int32)
        self._cells: list[npt.NDArray[Any]] = [np.zeros(cells, kind) for kind in _KINDS]
        self._used, self._documents = 1, 1

    def add(self, data: Bytes, offsets: Int64, subsets: Int64, *, at_words: bool) -> None:
        """Count documents, given as for `PhraseTable.find`, and the number of each one's subset, below 2^16."""
        table = self._table
        for found in table.find(data, offsets, at_words=at_words):
            done = 0
            while done < len(found):
                if self._used + table.depth > len(self._cells[0]):
                    more = len(self._cells[0]) + table.depth
                    self._cells = [np.concatenate([old, np.zeros(more, old.dtype)]) for old in self._cells]
                done, self._used = _count(
                    *(found, done, subsets, self._documents, table.parent, table.depth, self._heads),
                    *(tuple(self._cells), self._used),
                )
        self._documents += len(subsets)

    def rows(self) -> Int64:
        """Phrase's number << 16 | subset, ascending; occurrences; documents; int64 [3, pairs].

        Call it once, at the end.
        """
        rows = np.empty((3, self._used - 1), np.int64)
        _write_rows(self._table.parent, self._table.number, self._heads, tuple(self._cells), rows)
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
    subset, following, occurrences, documents, last = cells
    for i in range(begin, len(found)):
        if used + depth > len(subset):
            return i, used
        phrase, name, document = found[i, 0], subsets[found[i, 1]], first + found[i, 1]
        more = 1
        while phrase >= 0:
            cell, before = heads[phrase], 0
            while cell and subset[cell] != name:
                before, cell = cell, following[cell]
            if not cell:
                cell = used
                used += 1
                subset[cell], following[cell], heads[phrase] = name, heads[phrase], cell
            elif before:
                following[before] = following[cell]
                following[cell], heads[phrase] = heads[phrase], cell
            occurrences[cell] += more
            more = 0
            if last[cell] == document:
                break
            last[cell] = document
            documents[cell] += 1
            phrase = parent[phrase]
    return len(found), used


@compiled()
def _write_rows(parent: Int32, number: Int32, heads: Int32, cells: Any, rows: Int64) -> None:
    """Add occurrences to the parents, which stand before their children, and write the rows."""
    subset, following, occurrences, documents, _ = cells
    count = 0
    for phrase in range(len(heads) - 1, -1, -1):
        cell = heads[phrase]
        while cell:
            if parent[phrase] >= 0:
                above = heads[parent[phrase]]
                while subset[above] != subset[cell]:
                    above = following[above]
                occurrences[above] += occurrences[cell]
            rows[0, count] = np.int64(number[phrase]) << 16 | np.int64(subset[cell])
            rows[1, count], rows[2, count] = occurrences[cell], documents[cell]
            count += 1
            cell = following[cell]
