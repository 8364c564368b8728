"""`dropped.parquet`: each document that a cleaning dropped, with the rules that it fails.

    shard: string    number: int64    subset: string    bytes: int64    rules: list<string>

Rows are in the order of the corpus. Each shard writes a table of its own, and at the end they are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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


AddRows = Callable[[DocumentBatch, Sequence[Sequence[str]]], None]
"""Takes dropped documents, and for each the names of the rules that it fails."""


@contextmanager
def dropped_table(path: Path) -> Iterator[AddRows]:
    """Yield a function that adds rows to the table at `path`, which appears under its name when the block succeeds."""
    rows: list[dict[str, Any]] = []
    with write_atomically(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
            rows.clear()

        def add(dropped: DocumentBatch, rules: Sequence[Sequence[str]]) -> None:
            shard, numbers, sizes = dropped.shard, dropped.numbers.tolist(), dropped.text_bytes().tolist()
            columns = zip([shard] * len(dropped), numbers, dropped.subsets, sizes, rules, strict=True)
            rows.extend(dict(zip(SCHEMA.names, row, strict=True)) for row in columns)
            if len(rows) >= ROWS_PER_GROUP:
                flush()

        yield add
        flush()


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
