"""Sorting more rows than memory holds, against sorting them in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match.external_sort import RowSort
from pilekit.dedup.match.rows import Table
from tests.small_disk import small_disk

SMALLEST = 1
"""Bytes; the sort then holds 1,024 rows."""


def in_order(table: Table, *, distinct: bool) -> list[tuple[int, ...]]:
    rows = [tuple(row) for row in table.T.tolist()]
    return sorted(set(rows) if distinct else rows)


def sorted_by_pieces(folder: Path, table: Table, pieces: int, memory: int, *, distinct: bool) -> list[tuple[int, ...]]:
    with RowSort(folder, len(table), memory, distinct=distinct) as rows:
        for piece in np.array_split(table, pieces, axis=1):
            rows.add(piece)
        return [tuple(row) for chunk in rows.chunks() for row in chunk.T.tolist()]


@given(
    rows=st.integers(0, 9000),
    columns=st.integers(2, 4),
    values=st.sampled_from([1, 2, 30, 5000, 2**64]),
    pieces=st.integers(1, 40),
    memory=st.sampled_from([SMALLEST, 100_000, 10_000_000]),
    distinct=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    values: int,
    pieces: int,
    memory: int,
    distinct: bool,
    seed: int,
) -> None:
    table = np.random.default_rng(seed).integers(0, values, (columns, rows), dtype=np.uint64, endpoint=values < 2**64)
    found = sorted_by_pieces(tmp_path_factory.getbasetemp(), table, pieces, memory, distinct=distinct)
    assert found == in_order(table, distinct=distinct)


@pytest.mark.parametrize("order", ["ascending", "descending", "alike"])
@pytest.mark.parametrize("distinct", [False, True])
def test_orders_that_are_hard_for_sorts(tmp_path: Path, order: str, distinct: bool) -> None:
    table = np.zeros((3, 20_000), dtype=np.uint64)
    if order != "alike":
        table[0] = np.arange(20_000) // 3
        table[2] = np.arange(20_000) % 3
    if order == "descending":
        table = np.ascontiguousarray(table[:, ::-1])
    assert sorted_by_pieces(tmp_path, table, 9, SMALLEST, distinct=distinct) == in_order(table, distinct=distinct)


def test_what_is_handed_in_may_change_afterwards(tmp_path: Path) -> None:
    with RowSort(tmp_path, 2, SMALLEST) as rows:
        table = np.zeros((2, 10), dtype=np.uint64)
        for value in (2, 1):
            table[:] = value
            rows.add(table)
        assert np.concatenate(list(rows.chunks()), axis=1)[0].tolist() == [1] * 10 + [2] * 10


def test_repetitions_do_not_pile_up_on_disk(tmp_path: Path) -> None:
    """3,000 rows that do not fit into memory, each given a hundred times."""
    table = np.random.default_rng(1).integers(0, 2**64, (2, 3000), dtype=np.uint64)
    most = 0
    with RowSort(tmp_path, 2, SMALLEST, distinct=True) as rows:
        for _ in range(100):
            rows.add(table)
            most = max(most, rows.spilled_rows)
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 3000
    assert 3000 <= most <= 3 * 3000


def test_what_fits_into_memory_stays_there(tmp_path: Path) -> None:
    with RowSort(tmp_path, 2, 10_000_000) as rows:
        rows.add(np.ones((2, 100_000), dtype=np.uint64))
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 100_000
        assert rows.spilled_rows == 0


def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    table = np.random.default_rng(2).integers(0, 2**64, (2, 50_000), dtype=np.uint64)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(KeyboardInterrupt), RowSort(tmp_path, 2, SMALLEST) as rows:
        rows.add(table)
        assert rows.spilled_rows > 0
        assert list(tmp_path.iterdir()) == []  # not even while it works: a killed process leaves nothing
        next(rows.chunks())
        raise KeyboardInterrupt
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


FILL_THE_DISK = """
import sys
from pathlib import Path
import numpy as np
from pilekit.dedup.match.external_sort import RowSort
from pilekit.errors import PilekitError

with RowSort(Path(sys.argv[1]), 2, 1) as rows:
    try:
        rows.add(np.random.default_rng(3).integers(0, 2**64, (2, 500_000), dtype=np.uint64))
    except PilekitError as error:
        print(error)
"""


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2_000_000) as disk:
        command = [sys.executable, "-c", FILL_THE_DISK, str(disk.path)]
        told = subprocess.run(command, preexec_fn=disk.limit, check=True, capture_output=True, text=True).stdout
    assert told.startswith(f"{disk.path}: scratch space cannot be used: ")
    assert "No space left on device" in told or "File too large" in told
    assert told.count("\n") == 1


# Not ru_maxrss: a child process inherits its parent's.
SORT_THIRTY_TWO_MEGABYTES_IN_EIGHT = """
import re, sys
from pathlib import Path
import numpy as np
from pilekit.dedup.match.external_sort import RowSort

random = np.random.default_rng(4)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

def sort(pieces, memory):
    with RowSort(Path(sys.argv[1]), 2, memory) as rows:
        for _ in range(pieces):
            rows.add(random.integers(0, 2**64, (2, 20_000), dtype=np.uint64))
        assert rows.spilled_rows > 0
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 20_000 * pieces

sort(2, 1)  # compiles
before = peak()
sort(100, 8 << 20)
print(peak() - before)
"""


def test_memory_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SORT_THIRTY_TWO_MEGABYTES_IN_EIGHT, str(tmp_path)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 12 << 20  # the tables that are handed in and out come on top
