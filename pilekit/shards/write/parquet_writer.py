"""Write a shard as Parquet: text and label, in the columns that `datasets`, polars and `read` expect.

    text: string    meta: struct<pile_set_name: string>        (the manifest names the columns)

A document without a label has null there. Other fields of the record are dropped. Row groups hold about 4 MiB of text:
random access to a document reads one row group, and memory is bounded. A document is at most 1 GiB
(`max_document_bytes`), so a row group stays far below the 2 GiB that 32-bit offsets can address. Pages are compressed
with zstd and carry checksums. With one version of pyarrow, the same documents give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import UNLABELLED
from pilekit.documents import DocumentBatch, RecordFormat

ROW_GROUP_BYTES = 4 << 20
ROW_BYTES = 32
"""Bytes counted for a row in addition to its text, so that millions of empty texts do not make one row group."""


class RowGroups:
    """Gathers documents into row groups of a file that `parquet_writer` opened."""

    def __init__(self, writer: pq.ParquetWriter, format: RecordFormat, group_bytes: int):
        self._writer, self._format, self._group_bytes = writer, format, group_bytes
        self._texts: list[str] = []
        self._labels: list[str] = []
        self._held_bytes = 0

    def write(self, batch: DocumentBatch) -> None:
        """Write the documents of a batch."""
        for text, label, size in zip(batch.texts, batch.subsets, batch.text_bytes().tolist(), strict=True):
            self._texts.append(text)
            self._labels.append(label)
            self._held_bytes += size + ROW_BYTES
            if self._held_bytes >= self._group_bytes:
                self.flush()

    def flush(self) -> None:
        """Write the gathered documents as a row group."""
        if not self._texts:
            return
        labels: Any = pa.array([None if label == UNLABELLED else label for label in self._labels], pa.string())
        for key in reversed(self._format.label_path[1:]):
            labels = pa.StructArray.from_arrays([labels], [key])
        columns = [pa.array(self._texts, pa.string()), labels]
        self._texts, self._labels, self._held_bytes = [], [], 0
        self._writer.write_table(pa.Table.from_arrays(columns, schema=_schema(self._format)))


@contextmanager
def parquet_writer(
    path: str | Path, format: RecordFormat, *, group_bytes: int = ROW_GROUP_BYTES
) -> Iterator[RowGroups]:
    """Yield a `RowGroups` that writes documents to the Parquet file `path`, with the columns that `format` names.

    The file appears under its name when the block succeeds; nothing is left when it fails. Raises `PilekitError` if it
    cannot be written, for example on a full disk.
    """
    label = ".".join(format.label_path)
    with (
        write_atomically(path) as file,
        pq.ParquetWriter(
            file,
            _schema(format),
            compression="zstd",
            compression_level=3,
            use_dictionary=[label],
            write_statistics=[label],  # statistics of the texts would hold whole texts
            write_page_checksum=True,
        ) as writer,
    ):
        rows = RowGroups(writer, format, group_bytes)
        yield rows
        rows.flush()


def _schema(format: RecordFormat) -> pa.Schema:
    label: Any = pa.string()
    for key in reversed(format.label_path[1:]):
        label = pa.struct({key: label})
    return pa.schema({format.text_field: pa.string(), format.label_path[0]: label})
