"""Sort more rows than memory holds: `RowSort` takes rows in any order and returns them sorted, optionally distinct.

Rows are collected until the memory limit is reached, sorted, and appended to a temporary file as a sorted run. At the
end, samples of all runs cut the rows into ranges that fit in memory. The part of each run in a range is found
by bisection, and the parts are sorted together. A million rows with one key are no special case, because borders are
whole rows.

Distinct rows may be given many times (a pair is found in many bands). Each run drops its repetitions, and all runs are
rewritten when they have doubled: the disk holds at most three times the distinct rows.

The temporary file has no name, so a killed process leaves nothing. The order depends on the rows alone, not on memory.
"""

from __future__ import annotations

import mmap
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.sort.scratch_files import scratch_errors
from pilekit.workers.kernels import compiled

Table = npt.NDArray[np.uint64]
"""Rows in memory: uint64 [columns, rows]."""

AT_A_TIME = 1 << 15
"""Rows in a table that a sort returns."""
SHORT = 32
"""Up to this many rows with the same first value are ordered by insertion, which halves the time of a sort."""


class RowSort(AbstractContextManager["RowSort"]):
    """Sorts rows by the first column, then the second, and so on.

    folder     existing folder for rows that do not fit in memory
    columns    number of uint64 columns
    memory     bytes the sort may use, in addition to the tables given and returned
    distinct   return equal rows once
    """

    def __init__(self, folder: Path, columns: int, memory: int, *, distinct: bool = False):
        self._folder, self._columns, self._distinct = folder, columns, distinct
        # Rows that all tie take the most memory: the table, its tied rows, a working key, and three numbers for each
        # row.
        self._capacity = max(1024, memory // (16 * columns + 32))
        self._tables: list[Table] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._runs: list[int] = []  # rows of each run in the file
        self._compacted = 0  # rows in the file after the runs were last rewritten

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free memory and disk."""
        self._tables = []
        if self._file is not None:
            self._file.close()

    @property
    def count(self) -> int:
        """Number of rows held, in memory and on disk; equal rows may count several times."""
        return self._held + self.spilled_rows

    @property
    def spilled_rows(self) -> int:
        """Number of rows on disk."""
        return sum(self._runs)

    def add(self, table: Table) -> None:
        """Take the rows of a table, uint64 [columns, rows]; they are copied."""
        begin = 0
        while begin < table.shape[1]:
            if self._held >= self._capacity:
                self._make_room()
            part = table[:, begin : begin + self._capacity - self._held]
            self._tables.append(part.copy())
            self._held += part.shape[1]
            begin += part.shape[1]

    def chunks(self) -> Iterator[Table]:
        """All rows in ascending order, in small tables. Call it once, after the last `add`."""
        if self._runs:
            self._spill(self._take_sorted())
        for table in self._merged(self._file, self._runs) if self._file else [self._take_sorted()]:
            for begin in range(0, table.shape[1], AT_A_TIME):
                yield table[:, begin : begin + AT_A_TIME].copy()

    def _take_sorted(self) -> Table:
        tables, self._tables, self._held = self._tables, [], 0
        return self._in_order(tables)

    def _in_order(self, tables: list[Table]) -> Table:
        table = np.concatenate([np.empty((self._columns, 0), dtype=np.uint64), *tables], axis=1)
        tables.clear()
        order = np.argsort(table[0])
        for column in table:
            column[:] = column[order]
        del order
        same = table[0, 1:] == table[0, :-1]
        if same.any():  # Only rows that tie in the first column are compared by the others.
            tied = np.flatnonzero(_order_short_ties(table))
            order = tied[np.lexsort(table[::-1, tied])]
            for column in table:
                column[tied] = column[order]
            del tied, order
            if self._distinct:
                new = np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))
                table = table[:, new]
        return table

    def _make_room(self) -> None:
        table = self._take_sorted()
        if self._distinct and table.shape[1] <= self._capacity // 2:
            self._tables, self._held = [table], table.shape[1]
            return
        self._spill(table)
        if self._distinct and self.spilled_rows > 2 * max(self._compacted, self._capacity):
            old, runs = self._file, self._runs
            assert old is not None
            self._file, self._runs = None, []
            with old:
                for table in self._merged(old, runs):
                    self._spill(table)
            self._compacted = self.spilled_rows

    def _spill(self, table: Table) -> None:
        """Append sorted rows to the file as a run, column after column."""
        if not table.shape[1]:
            return
        with scratch_errors(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed by close)
            self._file.write(np.ascontiguousarray(table).data)
            self._file.flush()
        self._runs.append(table.shape[1])

    def _merged(self, file: IO[bytes], rows: list[int]) -> Iterator[Table]:
        """All rows of sorted runs in ascending order, in tables that fit in memory; `rows`: the rows of each run."""
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        parts = np.split(np.frombuffer(mapped, np.uint64), self._columns * np.cumsum(rows)[:-1])
        runs = [part.reshape(self._columns, -1) for part in parts]

        def forget(value: Any) -> Any:
            """Return `found` and release the pages read for it, which count as the process's memory."""
            mapped.madvise(mmap.MADV_DONTNEED)
            return value

        # Between two borders are `every` samples, plus up to `step` rows of each run: less than the capacity.
        every = 2 * len(runs)
        step = max(1, self._capacity // (4 * len(runs)))
        samples = self._in_order([forget(run[:, step::step].copy()) for run in runs])
        borders = samples[:, every::every].copy()
        del samples
        cuts = np.array([[0, *forget(_rows_before(run, borders)), run.shape[1]] for run in runs])
        for begins, ends in zip(cuts.T[:-1], cuts.T[1:], strict=True):
            yield forget(self._in_order([run[:, i:j] for run, i, j in zip(runs, begins, ends, strict=True)]))


def with_first(tables: Iterable[Table], columns: int) -> Iterator[tuple[Table, Table]]:
    """Each of the sorted tables, and for each row the first row with the same values in its first `columns`."""
    last = np.empty((0, 0), np.uint64)
    for table in tables:
        rows = np.concatenate([last.reshape(len(table), -1), table], axis=1)
        new = np.append(True, (rows[:columns, 1:] != rows[:columns, :-1]).any(axis=0))
        first = rows[:, np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))]
        yield table, first[:, last.shape[1] :]
        last = first[:, -1:]


def whole_runs(tables: Iterable[Table], longest: int = sys.maxsize) -> Iterator[Table]:
    """The same sorted rows, in tables that end where the first value changes, or after `longest` rows of one value.

    The tables given are shorter than that, so a longer run comes to the beginning of the held rows before it ends.
    """
    buffered = np.empty((0, 0), np.uint64)
    for table in tables:
        buffered = np.concatenate([buffered.reshape(len(table), -1), table], axis=1)
        while whole := _rows_of_whole_runs(buffered[0], longest):
            yield buffered[:, :whole]
            buffered = buffered[:, whole:]
    if buffered.size:
        yield buffered


def _rows_of_whole_runs(values: npt.NDArray[np.uint64], longest: int) -> int:
    """How many rows come before the last run, which may continue, or are to be cut off from the first one."""
    if len(values) > longest and values[longest] == values[0]:
        return longest
    return int(np.searchsorted(values, values[-1]))


@compiled()
def _order_short_ties(table: Table) -> npt.NDArray[np.bool_]:
    """Insertion-sort rows that tie in the first column by the others; flag the rows of long ties, which stay."""
    in_long_tie = np.zeros(table.shape[1], dtype=np.bool_)
    begin = 0
    for end in range(1, table.shape[1] + 1):
        if end < table.shape[1] and table[0, end] == table[0, begin]:
            continue
        if end - begin > SHORT:
            in_long_tie[begin:end] = True
        else:
            for i in range(begin + 1, end):
                while i > begin and _is_less(table, i, i - 1):
                    for column in range(1, len(table)):
                        table[column, i], table[column, i - 1] = table[column, i - 1], table[column, i]
                    i -= 1
        begin = end
    return in_long_tie


@compiled()
def _is_less(table: Table, first: int, second: int) -> bool:
    for column in range(1, len(table)):
        if table[column, first] != table[column, second]:
            return bool(table[column, first] < table[column, second])
    return False


def _rows_before(run: Table, borders: Table) -> list[int]:
    """Number of rows of a sorted run that are less than each border, a row of `borders`."""
    first = np.searchsorted(run[0], borders[0], side="left")
    last = np.searchsorted(run[0], borders[0], side="right")
    for i in np.flatnonzero(first < last).tolist():
        begin, end = int(first[i]), int(last[i])
        for column, value in zip(run[1:], borders[1:, i], strict=True):
            part = column[begin:end]
            begin, end = begin + int(np.searchsorted(part, value)), begin + int(np.searchsorted(part, value, "right"))
        first[i] = begin
    return [int(before) for before in first]
