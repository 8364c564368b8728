"""Parquet shards: the same records, stored as a table; the document number is the row number.

A file holds the text in the manifest's text field, and the label as nested structs (`meta` with a field
`pile_set_name`) or as one column that is named by the label's path (`meta.pile_set_name`).

Memory is one batch, one row and one page of each column, whatever the file holds. A dictionary or a page of zeros makes
gigabytes out of a kilobyte, so rows are decoded one at a time (6 us each), each row is measured before it becomes a
string, and rows are gathered into batches. The format limits a page to 2 GiB. Page checksums are verified; pilekit
writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.change_check import open_unchanged
from pilekit.shards.read.lines import LineCount, RowBlock
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import BadRecord, ShardDamage

BATCH_BYTES = 4 << 20
BATCH_ROWS = 1024
READ_BYTES = 1 << 20

# A page header in Thrift's compact protocol: type, size, stored size (fields 1 to 3), and perhaps the CRC (field 4).
# Each is an i32 whose field number is one more than the last (0x15), with at most 5 bytes.
_CHECKED_PAGE = re.compile(rb"(?:\x15[\x80-\xff]{0,4}[\x00-\x7f]){4}", re.DOTALL)


@contextmanager
def row_blocks(
    path: str,
    options: ReadOptions,
    shown: str,
    columns: RecordFormat | Collection[str],
    start: int,
    count: LineCount,
) -> Iterator[Iterator[RowBlock]]:
    """The blocks of a Parquet shard from row `start` on; the arguments are those of `shard_blocks`.

    After damage `count` is the number of the rows that were read.
    """
    with open_unchanged(path) as (file, _), locate_rows(shown, lambda: count.lines):
        size = file.seek(0, 2)
        table = open_table(file, size)
        leaves = {leaf.path for leaf in table.schema}
        format, names = RecordFormat(), None
        if isinstance(columns, RecordFormat):
            # Of a struct only the label's field is read. If it is missing, the whole column is read, to report the
            # problem or to find that there is no label. Arrow ignores the name of a missing column.
            format = format_of(table, columns, shown)
            label = ".".join(format.label_path)
            names = [format.text_field, label if label in leaves else format.label_path[0]]
        else:
            names = [name for name in table.schema_arrow.names if name in columns] or None
        rows = RowBlocks(table, names, shown, options.max_document_bytes, count, start=start)
        yield _decode_blocks(rows, format, size, options.advance)


def _decode_blocks(
    rows: RowBlocks, format: RecordFormat, size: int, advance: Callable[[int], None] | None
) -> Iterator[RowBlock]:
    """The rows, decoded; Parquet measures progress in rows only, so the file's `size` bytes are spread over them."""
    reported = 0
    for block in rows:
        end = rows.count.lines
        numbers = np.arange(end - len(block), end)
        yield RowBlock(numbers, decode_rows(pa.Table.from_batches(block)), format)
        if advance is not None:
            read_bytes = min(size, size * end // max(1, rows.table.metadata.num_rows))
            advance(read_bytes - reported)
            reported = read_bytes
    if advance is not None:
        advance(size - reported)


@dataclass
class RowBlocks:
    """The rows of a table in blocks; a block ends at 1,024 rows or at 4 MiB.

    path      the file's name in messages
    columns   the columns to read; None: all
    count     counts the rows that were read
    groups    the row groups to read; None: all
    start     rows before this number are skipped
    """

    table: pq.ParquetFile
    columns: list[str] | None
    path: str
    max_row_bytes: int
    count: LineCount
    groups: list[int] | None = None
    start: int = 0

    def __iter__(self) -> Generator[list[pa.RecordBatch], None, None]:
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for row in self.table.iter_batches(1, row_groups=self.groups, columns=self.columns, use_threads=False):
            row_bytes = row.get_total_buffer_size()
            if row_bytes > self.max_row_bytes:
                raise PilekitError(
                    f"{self.path}, row {self.count.lines + 1:,}: is longer than {self.max_row_bytes:,} bytes; split "
                    "the document or, if you trust the file, raise max_document_bytes of `pilekit.read`"
                )
            self.count.lines += 1
            if self.count.lines <= self.start:
                continue
            waiting.append(row)
            waiting_bytes += row_bytes
            if waiting_bytes >= BATCH_BYTES or len(waiting) == BATCH_ROWS:
                yield waiting
                waiting, waiting_bytes = [], 0
        if waiting:
            yield waiting


class RowGroup(NamedTuple):
    """The footer's entry for a row group.

    rows      number of rows
    size      uncompressed bytes of all columns
    columns   the first byte of each column in the file
    """

    rows: int
    size: int
    columns: list[int]


def row_groups(file: BinaryIO, path: str) -> list[RowGroup]:
    """The row groups of an open Parquet file; `path` is its name in messages."""
    with locate_rows(path, lambda: 0):
        metadata = open_table(file, file.seek(0, 2)).metadata
    groups = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        begins = [max(0, column.dictionary_page_offset or column.data_page_offset) for column in columns]
        groups.append(RowGroup(group.num_rows, max(0, group.total_byte_size), begins))
    return groups


def has_page_checksums(file: BinaryIO, group: RowGroup) -> bool:
    """Whether the first page of every column of a row group carries a checksum."""
    for begin in group.columns:
        file.seek(begin)
        if not _CHECKED_PAGE.match(file.read(32)):
            return False
    return True


@contextmanager
def locate_rows(path: str, read: Callable[[], int]) -> Iterator[None]:
    """Turn damage into a `PilekitError` that names the row; `read()` is the number of rows read before it."""
    try:
        yield
    except ShardDamage as damage:
        raise PilekitError(damage.describe(path, read() + 1)) from damage
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # The last is of a column's name.
        reason = visible(str(error).split("\n", 1)[0], 200)
        place = f", row {read() + 1:,}" if read() else ""
        raise PilekitError(f"{path}{place}: is not a whole Parquet file ({reason}); fetch it again") from error


def open_table(file: BinaryIO, size: int) -> pq.ParquetFile:
    """Open a Parquet file of `size` bytes with Parquet's own column types.

    The Arrow types that the writer may have stored are ignored: with them, Arrow would keep a dictionary of texts and
    copy it with every row.
    """
    if not size:
        raise ShardDamage("is empty (0 bytes), not a Parquet file; fetch it again", frame=None, byte=0)
    file.seek(max(0, size - 8))
    end = file.read(8)
    if not end.endswith(b"PAR1"):
        file.seek(0)
        file.read(8)  # `ShardDamage` if the file is known to be stored in another way.
    footer_bytes = int.from_bytes(end[:4], "little") + 8
    file.seek(max(0, size - footer_bytes))
    footer = file.read(footer_bytes).replace(b"ARROW:schema", b"ARROW-schema")
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
    # With these options Arrow reads a row group bit by bit, not all at once.
    return pq.ParquetFile(
        file, metadata=metadata, pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True
    )


def format_of(table: pq.ParquetFile, expected: RecordFormat, path: str) -> RecordFormat:
    """Where the rows of this file keep text and label."""
    names = table.schema_arrow.names
    if expected.text_field not in names:
        remedy = "see text_field in manifests"
        if {"shard", "number"} <= set(names):
            remedy = "it is a table about documents, as of `pilekit embed`; move it out of the corpus"
        raise PilekitError(f'{path}: has no column "{expected.text_field}"; {remedy}')
    flat = ".".join(expected.label_path)
    for name in (expected.text_field, flat, expected.label_path[0]):
        if names.count(name) > 1:
            raise PilekitError(f'{path}: has {names.count(name)} columns "{name}"; write it again with one of them')
    return replace(expected, label_path=(flat,)) if flat in names else expected


def decode_rows(rows: pa.Table) -> list[object]:
    """Each row as the record that a line of JSON would give; a `BadRecord` for a row that cannot be decoded."""
    try:
        # Three times as fast as row by row.
        return list(rows.combine_chunks().to_pylist())
    except UnicodeDecodeError:
        if len(rows) == 1:
            return [BadRecord("is not valid UTF-8")]
        return [record for place in range(len(rows)) for record in decode_rows(rows.slice(place, 1))]
