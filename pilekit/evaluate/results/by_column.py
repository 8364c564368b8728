"""Figures by any column of a table of documents, or by length, instead of by subset.

    records -> each document's value in the column -> records with these values as subsets

The table is a Parquet or Arrow file with the columns `shard` and `number`, which identify a document, and the column
asked for. It may have rows for other documents. Values become names, and documents without a value are a group of their
own. The overall figures of a result stay as they are.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.results.records import Records

LENGTH = "length"
NO_VALUE = "(none)"
MOST_GROUPS = 200
_EDGES = [0, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18]
_BINS = [
    "0 to 255 B",
    "256 to 1,023 B",
    "1 to 4 KiB",
    "4 to 16 KiB",
    "16 to 64 KiB",
    "64 to 256 KiB",
    "256 KiB and more",
]
_ARROW = (".arrow", ".feather", ".ipc")


def open_column(by: str) -> tuple[Path, str] | None:
    """The table's path and the column that `FILE:COLUMN` names; None for "length". PilekitError if there is none."""
    if by == LENGTH:
        return None
    name, _, column = by.rpartition(":")
    if not name or not column:
        raise PilekitError(f'by is length, or FILE:COLUMN as in facts.parquet:year, not "{shortened(by, 80)}"')
    if not Path(name).is_file():
        raise PilekitError(f"{name}: there is no such file; --by FILE:COLUMN names a Parquet or Arrow file")
    try:
        schema = _schema(Path(name))
        names = schema.names
    except (OSError, ValueError, pa.ArrowException) as error:
        raise PilekitError(f"{name}: is no Parquet file, nor an Arrow file named {', '.join(_ARROW)}") from error
    for needed in ("shard", "number", column):
        if names.count(needed) != 1:
            has = shortened(", ".join(names), 300)
            many = "several columns" if needed in names else "no column"
            raise PilekitError(f"{name}: has {many} {shortened(needed, 60)}, which --by needs; it has {has}")
    if not pa.types.is_integer(schema.field("number").type):
        raise PilekitError(f"{name}: its column number holds no integers, but a document's number is one")
    shard = schema.field("shard").type
    shard = shard.value_type if pa.types.is_dictionary(shard) else shard
    if not (pa.types.is_string(shard) or pa.types.is_large_string(shard) or pa.types.is_string_view(shard)):
        raise PilekitError(f"{name}: its column shard holds no strings, but a shard's name is one")
    if pa.types.is_nested(schema.field(column).type):
        raise PilekitError(f"{name}: each value of {shortened(column, 60)} holds several; --by needs plain values")
    return Path(name), column


def grouped(records: Records, by: str, most_groups: int = MOST_GROUPS) -> Records:
    """The records by "length" or by `FILE:COLUMN`: their `subsets` are the groups.

    PilekitError for a table that does not fit, and for more than `most_groups` groups.
    """
    opened = open_column(by)
    names: Sequence[str]
    if opened is None:
        names = _BINS
        codes = [bisect_right(_EDGES, size) - 1 for size in records.bytes.tolist()]
    else:
        try:
            values = _values(records, *opened)
        except (OSError, pa.ArrowException, ValueError, OverflowError) as error:  # also of values that Python lacks
            why = shortened(error, 300)
            raise PilekitError(f"{by}: cannot be read: {why}; write it again, with text or numbers") from error
        different = [value for value in dict.fromkeys(values) if value is not None]
        if len(different) > most_groups:
            raise PilekitError(f"{by}: has {len(different):,} different values, and at most {most_groups} are shown")
        names = [*map(str, sorted(different, key=lambda value: (str(type(value)), value))), NO_VALUE]
        place = {name: code for code, name in enumerate(names)}
        codes = [place[NO_VALUE if value is None else str(value)] for value in values]
    return replace(records, subsets=tuple(names), subset=np.array(codes, dtype=np.int32))


def _values(records: Records, table: Path, column: str) -> list[Any]:
    """Each document's value, or None."""
    rows = {(document.shard, document.number): row for row, document in enumerate(records.documents())}
    values: list[Any] = [None] * len(records)
    for batch in _batches(table, ["shard", "number", column]):
        columns = [_without_views(column) for column in batch.columns]
        is_here = pc.is_in(columns[0].cast(pa.large_string()), pa.array(records.shards, pa.large_string()))
        for shard, number, value in zip(*(column.filter(is_here).to_pylist() for column in columns), strict=True):
            if (row := rows.get((shard, number))) is not None and value is not None:
                group = value if value == value else "nan"  # each NaN is unequal to all others
                if values[row] not in (None, group):
                    where = f"{shortened(shard, 200)}, document {number}"
                    raise PilekitError(f"{where}: has two values of {shortened(column, 60)} in the table; give it one")
                values[row] = group
    return values


def _schema(table: Path) -> pa.Schema:
    if table.suffix in _ARROW:
        with pa.OSFile(os.fsencode(table)) as file:
            return pa.ipc.open_file(file).schema
    with pq.ParquetFile(table) as parquet:
        return parquet.schema_arrow


def _batches(table: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """These columns of the table, whose batches are right in themselves."""
    if table.suffix in _ARROW:
        column_numbers = [_schema(table).get_field_index(name) for name in columns]
        with pa.OSFile(os.fsencode(table)) as file:
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=column_numbers))
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)  # Arrow reads buffers as they are: a wrong offset would end the process.
                yield batch.select(columns)
    else:
        with pq.ParquetFile(table, page_checksum_verification=True) as parquet:
            yield from (batch.select(columns) for batch in parquet.iter_batches(columns=columns))


def _without_views(column: pa.Array) -> pa.Array:
    """The same values in a type that Arrow can filter."""
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(column.indices, _without_views(column.dictionary))
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(column.type)
    return column if plain is None else column.cast(plain)
