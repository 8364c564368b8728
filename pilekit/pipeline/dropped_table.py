"""`dropped.parquet`: each document that a cleaning dropped, with the rules that it fails.

    shard: string    number: int64    subset: string    bytes: int64    rules: list<string>

Rows are in the order of the corpus. Each shard writes a table of its own, and at the end they are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.documents import DocumentBatch

ROWS_PER_GROUP = 1 << 16
SCHEMA = pa.schema(
    [
        pa.field(name, type, nullable=False)
        for name, type in {
            "shard": pa.string(),
            "number": pa.int64(),
            "subset": pa.string(),
            "bytes": pa.int64(),
            "rules": pa.list_(pa.string()),
        }.items()
    ]
)


class DroppedRows:
    """Gathers rows into row groups of a table that `dropped_table` opened."""

    def __init__(self, writer: pq.ParquetWriter):
        self._writer = writer
        self._rows: list[dict[str, Any]] = []

    def add(self, dropped: DocumentBatch, rules: Sequence[Sequence[str]]) -> None:
        """Add documents, each with the names of the rules that it fails."""
        numbers, sizes = dropped.numbers.tolist(), dropped.text_bytes().tolist()
        for number, subset, size, failed in zip(numbers, dropped.subsets, sizes, rules, strict=True):
            row = {"shard": dropped.shard, "number": number, "subset": subset, "bytes": size, "rules": failed}
            self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the gathered rows as a row group."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows = []


@contextmanager
def dropped_table(path: Path) -> Iterator[DroppedRows]:
    """Yield `DroppedRows` of the table at `path`, which appears under its name when the block succeeds."""
    with write_atomically(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        rows = DroppedRows(writer)
        yield rows
        rows.flush()


def join_tables(path: Path, parts: Iterable[Path]) -> int:
    """Write the rows of all tables, one after the other, to the table at `path`; returns their number."""
    rows = 0
    with write_atomically(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for part in parts:
            with pq.ParquetFile(part) as table:
                for group in range(table.num_row_groups):
                    writer.write_table(table.read_row_group(group))
                rows += table.metadata.num_rows
    return rows
