"""Parquet shards: the same records from a table; the document number is the row number.

A file has the text in the manifest's text field and the label under the label's path, as nested structs (`meta` with a
field `pile_set_name`) or as one column with the path for its name (`meta.pile_set_name`).

Memory is a batch, a row, and a page of each column, whatever the file holds. A dictionary, or a page of zeros, makes
gigabytes out of a kilobyte; so Arrow is asked for one row at a time, a row is measured before it becomes a string, and
rows are gathered until they are worth a batch. (One page is at most 2 GiB: the format says so.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.errors import PilekitError, visible
from pilekit.shards.damage import ShardDamage
from pilekit.shards.records import BadRecord, LineParser, document_of

BATCH_BYTES = 4 << 20
BATCH_ROWS = 1024
READ_BYTES = 1 << 20


def parquet_batches(
    file: BinaryIO, parser: LineParser, start: int, max_document_bytes: int, advance: Callable[[int], None] | None
) -> Iterator[DocumentBatch]:
    """Yield the documents of an open Parquet file from row `start` on."""
    number = -1
    try:
        size = file.seek(0, 2)
        table = _open(file, size)
        format = _record_format(table, parser)
        # Of a struct only the label's own field is read; without such a field the whole column, to say what is wrong
        # with it or that there is no label. A column that is not there is passed over.
        label, leaves = ".".join(format.label_path), {leaf.path for leaf in table.schema}
        columns = [format.text_field, label if label in leaves else format.label_path[0]]
        held: list[pa.RecordBatch] = []
        held_bytes = told = 0
        for number, row in enumerate(table.iter_batches(1, columns=columns, use_threads=False)):
            row_bytes = row.get_total_buffer_size()
            if row_bytes > max_document_bytes:
                raise PilekitError(
                    f"{visible(parser.path)}, row {number + 1:,}: is longer than {max_document_bytes:,} bytes; split "
                    "the document or, if you trust the file, pass a larger max_document_bytes= to read()"
                )
            if number < start:
                continue
            held.append(row)
            held_bytes += row_bytes
            if held_bytes >= BATCH_BYTES or len(held) == BATCH_ROWS:
                yield from _documents(held, number + 1 - len(held), format, parser)
                held, held_bytes = [], 0
                if advance is not None:
                    # Rows are the only measure of progress that Parquet offers: spread the file's bytes over them.
                    done = min(size, size * (number + 1) // max(1, table.metadata.num_rows))
                    advance(done - told)
                    told = done
        if held:
            yield from _documents(held, number + 1 - len(held), format, parser)
        if advance is not None:
            advance(size - told)
    except ShardDamage as damage:
        raise PilekitError(damage.describe(parser.path, number + 2)) from damage
    except (pa.ArrowException, OSError) as error:
        place = f", at row {number + 2:,}" if number >= 0 else ""
        raise _not_whole(parser.path, error, place) from error


def row_groups(file: BinaryIO, path: str) -> tuple[list[int], list[int]]:
    """(rows, uncompressed bytes) of each row group of an open Parquet file; `path` is what messages call it."""
    try:
        metadata = _open(file, file.seek(0, 2)).metadata
    except ShardDamage as damage:
        raise PilekitError(damage.describe(path, 1)) from damage
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    return [group.num_rows for group in groups], [max(0, group.total_byte_size) for group in groups]


def _not_whole(path: str, error: Exception, place: str = "") -> PilekitError:
    reason = visible(str(error).split("\n", 1)[0], 200)
    return PilekitError(f"{visible(path)}: is not a whole Parquet file ({reason}{place}); fetch it again")


def _open(file: BinaryIO, size: int) -> pq.ParquetFile:
    """Open the file as what Parquet says of its columns, without the Arrow types that its writer may have noted.

    With those, a dictionary of texts would be kept, and copied with every row.
    """
    if not size:
        raise ShardDamage("is empty (0 bytes), not a Parquet file; fetch it again", frame=None, byte=0)
    file.seek(max(0, size - 8))
    footer_bytes = int.from_bytes(file.read(4), "little") + 8
    file.seek(max(0, size - footer_bytes))
    footer = file.read(footer_bytes).replace(b"ARROW:schema", b"ARROW-schema")
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
    # Without a pre-buffer, and with a buffer, a row group is read bit by bit and not whole.
    return pq.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=READ_BYTES)


def _record_format(table: pq.ParquetFile, parser: LineParser) -> RecordFormat:
    """Where this file's rows keep text and label."""
    names, wanted = table.schema_arrow.names, parser.format
    if wanted.text_field not in names:
        raise PilekitError(
            f'{visible(parser.path)}: has no column "{visible(wanted.text_field)}"; see text_field in manifests'
        )
    flat = ".".join(wanted.label_path)
    return RecordFormat(wanted.text_field, (flat,)) if flat in names else wanted


def _documents(
    rows: list[pa.RecordBatch], first: int, format: RecordFormat, parser: LineParser
) -> Iterator[DocumentBatch]:
    """The batch of these rows, the first of which has document number `first`; none if no row is a document wanted."""
    texts, labels, numbers = [], [], []
    for number, record in enumerate(_records(rows), first):
        try:
            if record is None:
                raise BadRecord("is not valid UTF-8")
            text, label = document_of(record, format)
        except BadRecord as bad:
            parser.bad(number, str(bad))
            continue
        if parser.subsets is None or label in parser.subsets:
            texts.append(text)
            labels.append(label)
            numbers.append(number)
    if texts:
        yield DocumentBatch(texts, labels, parser.shard, np.array(numbers, dtype=np.int64), format=parser.format)


def _records(rows: list[pa.RecordBatch]) -> list[dict[str, Any] | None]:
    """Each row as what a line of JSON would decode to; None where that is not valid UTF-8."""
    try:
        # All at once is three times as fast as row by row.
        return list(pa.Table.from_batches(rows).combine_chunks().to_pylist())
    except UnicodeDecodeError:
        return [_record(row) for row in rows]


def _record(row: pa.RecordBatch) -> dict[str, Any] | None:
    try:
        return dict(row.to_pylist()[0])
    except UnicodeDecodeError:
        return None
