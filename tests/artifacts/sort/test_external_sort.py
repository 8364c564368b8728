"""Sorting more rows than memory holds gives the same result as sorting in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.sort.external_sort import RowSort, Table
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


@given(st.data())
def test_rows_come_in_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(2, 4), st.integers(0, 9000)))
    values, seed = data.draw(st.sampled_from([0, 2, 30, 5000, 2**64])), data.draw(st.integers(0, 2**32 - 1))
    table = np.random.default_rng(seed).integers(0, values, shape, dtype=np.uint64, endpoint=values < 2**64)
    pieces, memory = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([SMALLEST, 100_000, 10_000_000]))
    check_order(tmp_path_factory.getbasetemp(), table, pieces, memory, distinct=data.draw(st.booleans()))


def test_space_on_disk(tmp_path: Path) -> None:
    """Repetitions do not pile up, rows that fit stay in memory, and no file has a name: a killed process leaves none.

    3,000 rows that do not fit in memory are each given a hundred times.
    """
    table = np.random.default_rng(1).integers(0, 2**64, (2, 3000), dtype=np.uint64)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    most = 0
    with RowSort(tmp_path, 2, SMALLEST, distinct=True) as rows:
        for _ in range(100):
            rows.add(table)
            most = max(most, rows.spilled_rows)
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 3000
        assert list(tmp_path.iterdir()) == []
    assert 3000 <= most <= 3 * 3000
    with RowSort(tmp_path, 2, 10_000_000) as rows:
        rows.add(np.ones((2, 100_000), dtype=np.uint64))
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 100_000
        assert rows.spilled_rows == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


SORT_THIRTY_TWO_MEGABYTES_IN_EIGHT = """
import sys
from pathlib import Path
import numpy as np
from pilekit.artifacts.sort.external_sort import RowSort
from pilekit.errors import PilekitError
from tests.memory_limit import limit_memory

random = np.random.default_rng(4)

def sort(pieces, memory):
    with RowSort(Path(sys.argv[1]), 2, memory) as rows:
        for _ in range(pieces):
            rows.add(random.integers(0, 2**64, (2, 20_000), dtype=np.uint64))
        assert rows.spilled_rows > 0
        assert sum(chunk.shape[1] for chunk in rows.chunks()) == 20_000 * pieces

sort(2, 1)
limit_memory(12 << 20)
try:
    sort(100, 8 << 20)
except PilekitError as error:
    print(error)
"""


def test_memory_holds_and_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SORT_THIRTY_TWO_MEGABYTES_IN_EIGHT]
    assert subprocess.run([*command, str(tmp_path)], check=True, capture_output=True).stdout == b""
    with small_disk(tmp_path / "disk", 2_000_000) as disk:
        done = subprocess.run(
            [*command, str(disk.path)], preexec_fn=disk.limit, check=True, capture_output=True, text=True
        )
    assert done.stdout.startswith(f"{disk.path}: scratch space cannot be used: ")
    assert "No space left on device" in done.stdout or "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
