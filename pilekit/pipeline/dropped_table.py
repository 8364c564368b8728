"""`dropped.parquet`: each document that a cleaning dropped, with the rules that it fails.

    shard: string    number: int64    subset: string    bytes: int64    rules: list<string>

Rows are in the order of the corpus. Each shard writes a table of its own, and at the end they are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.parquet_rows import parquet_rows, required
from pilekit.documents import DocumentBatch

SCHEMA = required(
    shard=pa.string(), number=pa.int64(), subset=pa.string(), bytes=pa.int64(), rules=pa.list_(pa.string())
)


AddRows = Callable[[DocumentBatch, Sequence[Sequence[str]]], None]
"""Takes dropped documents, and for each the names of the rules that it fails."""


@contextmanager
def dropped_table(path: Path) -> Iterator[AddRows]:
    """Yield a function that adds rows to the table at `path`, which appears under its name when the block succeeds."""
    with parquet_rows(path, SCHEMA) as rows:

        def add(dropped: DocumentBatch, rules: Sequence[Sequence[str]]) -> None:
            shard, numbers, sizes = dropped.shard, dropped.numbers.tolist(), dropped.text_bytes().tolist()
            for row in zip([shard] * len(dropped), numbers, dropped.subsets, sizes, rules, strict=True):
                rows.add(dict(zip(SCHEMA.names, row, strict=True)))

        yield add


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
