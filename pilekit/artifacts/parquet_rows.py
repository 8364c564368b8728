"""Write Parquet files row by row, in row groups, or from other files. A file appears when it is complete.

`in_row_groups` gives the tables to write as row groups, from batches of any size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically

ROWS_PER_GROUP = 1 << 16


class ParquetRows:
    """Gathers rows into row groups of a file that `parquet_rows` opened; `count` is the number of rows."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema):
        self.count = 0
        self._writer, self._schema = writer, schema
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the gathered rows as a row group."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def in_row_groups(batches: Iterable[pa.RecordBatch], rows: int, most_bytes: int = sys.maxsize) -> Iterator[pa.Table]:
    """The same rows in tables of `rows` rows, the last one of fewer; also of fewer once they take `most_bytes`."""
    buffered: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        buffered.append(batch)
        count, size = count + len(batch), size + batch.nbytes
        if count >= rows or size >= most_bytes:
            # One dictionary for the labels of a table, or its batches would be written one by one.
            table = pa.Table.from_batches(buffered).unify_dictionaries()
            whole = count // rows * rows or count
            for begin in range(0, whole, rows):
                yield table.slice(begin, min(rows, whole - begin))
            buffered = table.slice(whole).to_batches()
            count, size = count - whole, sum(batch.nbytes for batch in buffered)
    if buffered:
        yield pa.Table.from_batches(buffered).unify_dictionaries()


def required(**columns: pa.DataType) -> pa.Schema:
    """A schema of these columns, none of which may be null."""
    return pa.schema([pa.field(name, type, nullable=False) for name, type in columns.items()])


@contextmanager
def parquet_rows(path: Path, schema: pa.Schema) -> Iterator[ParquetRows]:
    """Yield the `ParquetRows` of the file at `path`, which appears under its name when the block succeeds."""
    with write_atomically(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = ParquetRows(writer, schema)
        yield rows
        rows.flush()


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> Path:
    """Write rows, each the values of all columns in their order; returns the path."""
    with parquet_rows(path, schema) as table:
        for row in rows:
            table.add(dict(zip(schema.names, row, strict=True)))
    return path


def join_tables(path: Path, schema: pa.Schema, parts: Iterable[Path], *, rows_per_group: int = ROWS_PER_GROUP) -> Path:
    """Write the rows of other Parquet files of this schema; returns the path.

    Tables of few rows share a row group, because each group takes 500 bytes of the footer, which every reader reads.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            with pq.ParquetFile(part) as table:
                yield from table.iter_batches(rows_per_group)

    with write_atomically(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in in_row_groups(batches(), rows_per_group):
            writer.write_table(group)
    return path
