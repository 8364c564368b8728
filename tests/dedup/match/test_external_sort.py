"""Sorting more rows than memory holds gives the same result as sorting in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match.external_sort import RowSort, Table
from tests.small_disk import small_disk

SMALLEST = 1
"""Bytes; the sort then holds 1,024 rows."""


def check_order(folder: Path, table: Table, pieces: int, memory: int, *, distinct: bool) -> None:
    """Sort the rows, given in pieces, and compare with Python's sort."""
    with RowSort(folder, len(table), memory, distinct=distinct) as sort:
        for piece in np.array_split(table, pieces, axis=1):
            own = piece.copy()
            sort.add(own)
            own[:] = 0  # The sort has a copy.
        found = [tuple(row) for chunk in sort.chunks() for row in chunk.T.tolist()]
    rows = [tuple(row) for row in table.T.tolist()]
    assert found == (sorted(set(rows)) if distinct else sorted(rows))


@given(
    rows=st.integers(0, 9000),
    columns=st.integers(2, 4),
    values=st.sampled_from([2, 30, 5000, 2**64]),
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
    check_order(tmp_path_factory.getbasetemp(), table, pieces, memory, distinct=distinct)


def test_hard_orders(tmp_path: Path) -> None:
    ascending = np.stack([np.arange(20_000) // 3, np.zeros(20_000), np.arange(20_000) % 3]).astype(np.uint64)
    one_key = np.stack([np.zeros(20_000), np.arange(20_000)[::-1], np.zeros(20_000)]).astype(np.uint64)
    for table in (ascending, ascending[:, ::-1], np.zeros_like(ascending), one_key):
        for distinct in (False, True):
            check_order(tmp_path, table, 9, SMALLEST, distinct=distinct)


def test_repetitions_do_not_pile_up_on_disk(tmp_path: Path) -> None:
    """3,000 rows that do not fit in memory, each given a hundred times."""
    table = np.random.default_rng(1).integers(0, 2**64, (2, 3000), dtype=np.uint64)
    most = 0
    with RowSort(tmp_path, 2, SMALLEST, distinct=True) as rows:
        for _ in range(100):
            rows.add(table)
            most = max(most, rows.spilled_rows)
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 3000
    assert 3000 <= most <= 3 * 3000


def test_rows_that_fit_stay_in_memory(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2_000_000) as disk:
        command = [sys.executable, "-c", FILL_THE_DISK, str(disk.path)]
        told = subprocess.run(command, preexec_fn=disk.limit, check=True, capture_output=True, text=True).stdout
    assert told.startswith(f"{disk.path}: scratch space cannot be used: ")
    assert "No space left on device" in told or "File too large" in told
    assert told.count("\n") == 1


# Anonymous memory: mapped runs are files, which the system can drop.
SORT_THIRTY_TWO_MEGABYTES_IN_EIGHT = """
import re, resource, sys
from pathlib import Path
import numpy as np
from pilekit.dedup.match.external_sort import RowSort

random = np.random.default_rng(4)

def sort(pieces, memory):
    with RowSort(Path(sys.argv[1]), 2, memory) as rows:
        for _ in range(pieces):
            rows.add(random.integers(0, 2**64, (2, 20_000), dtype=np.uint64))
        assert rows.spilled_rows > 0
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 20_000 * pieces

sort(2, 1)
taken = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (taken + (12 << 20),) * 2)
sort(100, 8 << 20)
"""


def test_memory_holds(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SORT_THIRTY_TWO_MEGABYTES_IN_EIGHT, str(tmp_path)], check=True)
