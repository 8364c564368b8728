"""Rows of 64-bit numbers in a file: pairs, edges, decisions, in the order in which the next step reads them.

In memory a chunk of rows is a table, uint64 [columns, rows], so that each column is contiguous; on disk the rows lie
one after the other, little-endian, without a header: what they mean and what they were made of is known to the folder.
A similarity goes as the bits of its float64 (`view(np.uint64)`), which are in the order of the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, visible

Table = npt.NDArray[np.uint64]

AT_A_TIME = 1 << 16
"""Rows in a chunk: large enough that Python between them costs nothing, small enough for the cache."""


@dataclass(frozen=True)
class Rows:
    """Rows in a file; nothing of them is in memory."""

    path: Path
    columns: int

    @property
    def count(self) -> int:
        """How many there are; `PilekitError` if the file does not end with a row."""
        count, rest = divmod(self.path.stat().st_size, 8 * self.columns)
        if rest:
            raise PilekitError(f"{visible(str(self.path))}: is damaged (its last row is cut off); remove it")
        return count

    def chunks(self, begin: int = 0, end: int | None = None, *, rows: int = AT_A_TIME) -> Iterator[Table]:
        """Rows `begin` to `end` (None: the last) in tables of at most so many."""
        end = self.count if end is None else end
        with self.path.open("rb") as file:
            file.seek(begin * 8 * self.columns)
            while begin < end:
                found = np.fromfile(file, dtype=np.uint64, count=min(rows, end - begin) * self.columns)
                if not len(found):
                    raise PilekitError(f"{visible(str(self.path))}: is damaged (it has become shorter); remove it")
                table = np.ascontiguousarray(found.reshape(-1, self.columns).T)
                begin += table.shape[1]
                yield table


def write_rows(path: Path, columns: int, chunks: Iterable[Table]) -> Rows:
    """Write tables of rows, one after the other, as a file that is complete or not there."""
    with write_atomically(path) as file:
        for table in chunks:
            file.write(np.ascontiguousarray(table.T).data)
    return Rows(path, columns)
