"""More rows than memory holds, in order: rows are given in any order and come back sorted, each once where asked.

Everything that matching does with pairs and keys is a sort, so this one part bounds its memory. Rows are gathered until
the memory allowed is full, sorted and written out; in the end those sorted runs are merged. Unlike partitions by key,
that is indifferent to how the keys are spread: a million rows of one key are sorted rows like any others. What fits
into memory never touches the disk, and the order is that of the rows alone, so memory cannot change a result.

Where rows are to come once, as pairs that were found in many bands, each run drops its repetitions, and runs are merged
when they have grown to twice of what the last merge left: the disk holds no more than three times the distinct rows, or
twice the memory.

The file has no name, so its space is free again as soon as the process is gone, however it ends. Sorting takes 50-120
ns a row, writing out and merging 40 more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from pilekit.dedup.match.rows import AT_A_TIME, Table
from pilekit.errors import PilekitError, visible
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

_SHORT = 32
"""Rows alike in the first column are ordered by insertion up to this many."""
_WORTH_MERGING = 2
"""So many full memories of rows are on disk before runs are first merged to drop repetitions."""


class RowSort:
    """A bag of rows that hands them back in ascending order, by the first column, then the second, and so on.

    folder     where rows go that memory does not hold; it must be there
    columns    how many uint64 columns, at least 2
    memory     bytes that may be used at any time, beside the tables handed in and out
    distinct   whether equal rows come only once
    """

    def __init__(self, folder: Path, columns: int, memory: int, *, distinct: bool = False):
        self._folder = folder
        self._columns = columns
        self._memory = memory
        self._distinct = distinct
        # Putting the blocks together takes their size again; so does dropping repetitions, and a flag for each row.
        self._capacity = max(1024, memory // (17 * columns))
        self._blocks: list[Table] = []
        self._free = 0  # rows of the last block that are not in use
        self._held = 0  # rows in all blocks
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []  # (first row, rows) in the file
        self._merged = 0  # rows on disk after the last merge

    def __enter__(self) -> RowSort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of memory and disk."""
        self._blocks = []
        if self._file is not None:
            self._file.close()

    @property
    def spilled_rows(self) -> int:
        """How many rows are on disk."""
        return sum(rows for _, rows in self._runs)

    def add(self, table: Table) -> None:
        """Take the rows of a table, uint64 [columns, rows], in any order; they are copied."""
        begin, rows = 0, table.shape[1]
        while begin < rows:
            if not self._free:
                if self._held >= self._capacity:
                    self._make_room()
                self._free = min(AT_A_TIME, self._capacity - self._held)
                self._blocks.append(np.empty((self._columns, self._free), dtype=np.uint64))
            block = self._blocks[-1]
            taken = min(self._free, rows - begin)
            at = block.shape[1] - self._free
            block[:, at : at + taken] = table[:, begin : begin + taken]
            begin += taken
            self._free -= taken
            self._held += taken

    def chunks(self) -> Iterator[Table]:
        """All rows in ascending order, as tables of their own; ends the adding, and can be called once."""
        if self._file is None:
            table = self._take_sorted()
            for begin in range(0, table.shape[1], AT_A_TIME):
                yield table[:, begin : begin + AT_A_TIME].copy()
        else:
            self._spill(self._take_sorted())
            yield from self._merge()

    def _take_sorted(self) -> Table:
        """The rows held in memory, in order, which are then held no longer."""
        if not self._blocks:
            return np.empty((self._columns, 0), dtype=np.uint64)
        last = self._blocks[-1]
        self._blocks[-1] = last[:, : last.shape[1] - self._free]
        table = np.concatenate(self._blocks, axis=1)
        self._blocks, self._free, self._held = [], 0, 0
        del last
        _sort(table)
        if self._distinct and table.shape[1]:
            new = np.ones(table.shape[1], dtype=np.bool_)
            np.not_equal(table[0, 1:], table[0, :-1], out=new[1:])
            for column in table[1:]:
                new[1:] |= column[1:] != column[:-1]
            if not new.all():
                table = np.compress(new, table, axis=1)
        return table

    def _make_room(self) -> None:
        table = self._take_sorted()
        if self._distinct and table.shape[1] <= self._capacity // 2:
            self._blocks, self._held = [table], table.shape[1]
            return
        self._spill(table)
        del table
        new = self.spilled_rows - self._merged
        if self._distinct and new > max(self._merged, _WORTH_MERGING * self._capacity):
            self._merge_runs()

    def _spill(self, table: Table) -> None:
        """Write rows that are in order to the disk, as a run."""
        with scratch_errors(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed by close)
            self._runs.append((self.spilled_rows, table.shape[1]))
            for begin in range(0, table.shape[1], AT_A_TIME):
                self._file.write(np.ascontiguousarray(table[:, begin : begin + AT_A_TIME].T).data)

    def _merge_runs(self) -> None:
        """Make one run of all that are on disk, without repetitions."""
        old = self._file
        assert old is not None
        rows = 0
        with scratch_errors(self._folder):
            new = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed by close)
            try:
                for table in self._merge():
                    new.write(np.ascontiguousarray(table.T).data)
                    rows += table.shape[1]
            except BaseException:
                new.close()
                raise
        old.close()
        self._file, self._runs, self._merged = new, [(0, rows)], rows

    def _merge(self) -> Iterator[Table]:
        """All rows on disk, in order."""
        assert self._file is not None
        unread = [list(run) for run in self._runs if run[1]]
        width = self._columns
        size = max(256, self._memory // (2 * 8 * width * max(1, len(unread))))
        blocks = np.empty((len(unread), size, width), dtype=np.uint64)
        at, end = np.zeros((2, len(unread)), dtype=np.int64)

        def refill(run: int) -> bool:
            begin, rows = unread[run]
            rows = min(rows, size)
            if rows:
                self._file.seek(begin * 8 * width)  # type: ignore[union-attr]
                self._file.readinto(blocks[run, :rows].reshape(-1).view(np.uint8).data)  # type: ignore[union-attr]
                unread[run] = [begin + rows, unread[run][1] - rows]
                at[run], end[run] = 0, rows
            return rows > 0

        for run in range(len(unread)):
            refill(run)
        # What is in order is a heap.
        heap = np.array(sorted(range(len(unread)), key=lambda run: blocks[run, 0].tolist()), dtype=np.int64)
        last = np.zeros(width, dtype=np.uint64)
        any_yet = False
        out_rows = max(256, min(AT_A_TIME, self._memory // (4 * 8 * width)))
        out, count = np.empty((width, out_rows), dtype=np.uint64), 0
        while len(heap):
            count, starved = _merge_rows(blocks, at, end, heap, out, count, self._distinct, last, any_yet)
            any_yet = True
            if starved >= 0 and not refill(starved):
                heap = np.concatenate([heap[-1:], heap[1:-1]]) if len(heap) > 1 else heap[:0]
            if count == out_rows:
                yield out
                out, count = np.empty((width, out_rows), dtype=np.uint64), 0
        if count:
            yield out[:, :count]


@contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses in the block into a `PilekitError` that names the folder."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise PilekitError(f"{visible(str(folder))}: scratch space cannot be used: {visible(why)}") from error


def _sort(table: Table) -> None:
    """Sort the rows of a table in place."""
    order = np.argsort(table[0])
    for column in table:
        column[:] = column[order]
    del order
    long_runs = np.empty((table.shape[1] // _SHORT + 1, 2), dtype=np.int64)
    for begin, end in long_runs[: _order_alike(table, long_runs)]:
        rest = table[1:, begin:end]
        if len(rest) == 1:
            rest[0].sort()
        else:
            order = np.lexsort(rest[::-1])
            for column in rest:
                column[:] = column[order]


@compiled()
def _order_alike(table: Table, long_runs: Int64) -> int:
    """Put rows that are alike in the first column into the order of the others; list those that are too many."""
    columns, rows = table.shape
    found = 0
    row = np.empty(columns, dtype=np.uint64)
    begin = 0
    while begin < rows:
        end = begin + 1
        while end < rows and table[0, end] == table[0, begin]:
            end += 1
        if end - begin > _SHORT:
            long_runs[found, 0], long_runs[found, 1] = begin, end
            found += 1
        else:
            for i in range(begin + 1, end):
                for column in range(1, columns):
                    row[column] = table[column, i]
                j = i
                while j > begin:
                    column = 1
                    while column < columns - 1 and table[column, j - 1] == row[column]:
                        column += 1
                    if table[column, j - 1] <= row[column]:
                        break
                    for column in range(1, columns):
                        table[column, j] = table[column, j - 1]
                    j -= 1
                for column in range(1, columns):
                    table[column, j] = row[column]
        begin = end
    return found


@compiled()
def _before(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> bool:
    for column in range(len(one)):
        if one[column] != other[column]:
            return bool(one[column] < other[column])
    return False


@compiled()
def _merge_rows(
    blocks: npt.NDArray[np.uint64],
    at: Int64,
    end: Int64,
    heap: Int64,
    out: Table,
    count: int,
    distinct: bool,
    last: npt.NDArray[np.uint64],
    any_yet: bool,
) -> tuple[int, int]:
    """Move the least rows of all blocks to `out`; returns (rows in it, the run whose block has come to its end or -1).

    blocks    a part of each run, uint64 [runs, rows, columns], in use from `at[run]` to `end[run]`
    heap      the runs that are left; all but its first are a heap by their next rows
    last      the row that was moved last, if there was any yet
    """
    while True:
        # The first run of the heap has a new next row: find its place.
        run = heap[0]
        place = 0
        while True:
            child = 2 * place + 1
            if child >= len(heap):
                break
            other = child + 1
            if other < len(heap) and _before(
                blocks[heap[other], at[heap[other]]], blocks[heap[child], at[heap[child]]]
            ):
                child = other
            if not _before(blocks[heap[child], at[heap[child]]], blocks[run, at[run]]):
                break
            heap[place] = heap[child]
            place = child
        heap[place] = run

        if count == out.shape[1]:
            return count, -1
        run = heap[0]
        row = blocks[run, at[run]]
        same = distinct and any_yet
        for column in range(len(row)):
            if not same:
                break
            same = row[column] == last[column]
        if not same:
            for column in range(len(row)):
                out[column, count] = last[column] = row[column]
            count += 1
            any_yet = True
        at[run] += 1
        if at[run] == end[run]:
            return count, run
