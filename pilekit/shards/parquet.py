"""Parquet shards: the same columns from a table of records; the document number is the row number.

A file has the text in the manifest's text field and the label under the label's path, as nested structs (`meta` with a
field `pile_set_name`) or as one column with the path for its name (`meta.pile_set_name`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pilekit.corpus import UNLABELLED
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.shards.records import LineParser

ROWS_PER_BATCH = 256
"""About 1.5 MB of text at the Pile's mean document size."""


def parquet_batches(
    file: BinaryIO, parser: LineParser, start: int, advance: Callable[[int], None] | None
) -> Iterator[DocumentBatch]:
    """Yield the documents of an open Parquet file from row `start` on."""
    try:
        table = pq.ParquetFile(file)
        columns = _columns(table.schema_arrow, parser)
        told = first = 0
        for rows in table.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns, use_threads=False):
            if first + len(rows) > start:
                skip = max(0, start - first)
                batch = _documents(rows.slice(skip), first + skip, parser)
                if len(batch):
                    yield batch
            first += len(rows)
            if advance is not None:
                # Rows are the only measure of progress that Parquet offers: spread the file's bytes over them.
                done = file.tell() if not table.metadata.num_rows else _size(file) * first // table.metadata.num_rows
                advance(done - told)
                told = done
    except (pa.ArrowException, OSError) as error:
        reason = visible(str(error).splitlines()[0], 200)
        raise PilekitError(f"{visible(parser.path)}: is not a whole Parquet file ({reason}); fetch it again") from error


def _size(file: BinaryIO) -> int:
    here = file.tell()
    end = file.seek(0, 2)
    file.seek(here)
    return end


def _columns(schema: pa.Schema, parser: LineParser) -> list[str]:
    text, path = parser.format.text_field, parser.format.label_path
    if text not in schema.names:
        raise PilekitError(f'{visible(parser.path)}: has no column "{visible(text)}"; see text_field in manifests')
    for label in (".".join(path), path[0]):
        if label in schema.names:
            return [text, label]
    return [text]


def _documents(rows: pa.RecordBatch, first: int, parser: LineParser) -> DocumentBatch:
    text_column = rows.column(parser.format.text_field)
    texts: list[Any] = text_column.to_pylist()
    labels = _labels(rows, parser)
    keep = []
    for index, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if type(text) is not str or type(label) is not str:
            column = parser.format.text_field if type(text) is not str else ".".join(parser.format.label_path)
            parser.bad(first + index, f'column "{visible(column)}" is {"null" if text is None else "not a string"}')
        elif parser.subsets is None or label in parser.subsets:
            keep.append(index)
    return DocumentBatch(
        [texts[i] for i in keep],
        [labels[i] for i in keep],
        parser.shard,
        np.array(keep, dtype=np.int64) + first,
        format=parser.format,
    )


def _labels(rows: pa.RecordBatch, parser: LineParser) -> list[Any]:
    path = parser.format.label_path
    if ".".join(path) in rows.schema.names:
        column = rows.column(".".join(path))
    elif path[0] in rows.schema.names:
        column = rows.column(path[0])
        for key in path[1:]:
            if not pa.types.is_struct(column.type) or column.type.get_field_index(key) < 0:
                return [UNLABELLED] * len(rows)
            column = pc.struct_field(column, key)
    else:
        return [UNLABELLED] * len(rows)
    return [UNLABELLED if label is None else label for label in column.to_pylist()]
