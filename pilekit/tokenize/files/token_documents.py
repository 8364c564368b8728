"""The documents of token files: the file each goes into, and a table with a row per document.

    shard: dictionary<string>   number: int64   subset: dictionary<string>   tokens: int32, EOD counted   file: int32

A row group holds at most 2^18 documents, of one shard. So neither writing the table nor reading a part of it needs much
memory. While a shard is tokenized, each of its documents is a record of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically

RECORD = np.dtype([("number", "<i8"), ("tokens", "<i4"), ("subset", "<i4")])
"""A document in a shard's file of records; `subset` is an index into the shard's list of subsets."""

ROWS = 1 << 18
"""Most documents in a row group, and in a piece read or written at once."""

_NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema({"shard": _NAMES, "number": pa.int64(), "subset": _NAMES, "tokens": pa.int32(), "file": pa.int32()})

Integers = npt.NDArray[np.integer]
Rows = Iterable[pa.RecordBatch]
"""Rows of the table in pieces of at most `ROWS`."""


@dataclass
class Cut:
    """Where the next document goes: the file, and the tokens that it holds."""

    file: int = 0
    tokens: int = 0

    def place(self, lengths: Integers, limit: int | None) -> Iterator[tuple[int, int, int, int]]:
        """Place the next documents, of these lengths: (file, first, last, tokens) for each file they go into.

        A file holds at most `limit` tokens, or one longer document. An empty file takes one document at least.
        """
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        first, count = 0, len(lengths)
        while first < count:
            last = int(np.searchsorted(ends, ends[first] + (limit or 1 << 62) - self.tokens, side="right")) - 1
            last = max(last, first + (self.tokens == 0))
            if last > first:
                tokens = int(ends[last] - ends[first])
                self.tokens += tokens
                yield self.file, first, last, tokens
            if last < count:
                self.file, self.tokens = self.file + 1, 0
            first = last


def token_rows(
    shard: str, numbers: Integers, codes: Integers, labels: Collection[str], tokens: Integers
) -> pa.RecordBatch:
    """The rows of documents of one shard, without their files; `codes` are places of labels in `labels`."""
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(tokens), np.int32)), [shard]),
        pa.array(numbers),
        pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), list(labels)),
        pa.array(tokens, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(SCHEMA)[:-1]))


def rows_of_records(path: Path, shard: str, labels: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The rows of the documents in a file of records."""
    with path.open("rb") as file:
        while len(records := np.fromfile(file, RECORD, ROWS)):
            yield token_rows(shard, records["number"], records["subset"], labels, records["tokens"])


def with_files(rows: Rows, cut: Cut, limit: int | None) -> Iterator[pa.RecordBatch]:
    """The rows with the new file of each document; the first goes to `cut`, which moves behind the last."""
    for batch in rows:
        files = np.empty(len(batch), np.int32)
        for file, first, last, _ in cut.place(batch["tokens"].to_numpy(), limit):
            files[first:last] = file
        yield batch.select(SCHEMA.names[:-1]).append_column(SCHEMA.field("file"), pa.array(files))


def write_documents(path: Path, rows: Rows) -> None:
    """Write the table."""
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": ["shard", "subset"]}
    with write_atomically(path) as out, pq.ParquetWriter(out, SCHEMA, **options) as writer:
        for batch in rows:
            writer.write_batch(batch)


def read_documents(path: Path, file: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of the table, or of one file's documents."""
    import pyarrow.dataset as ds

    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    table = ds.dataset(path, format=ds.ParquetFileFormat(default_fragment_scan_options=checked))
    rows = None if file is None else ds.field("file") == file
    return filter(len, table.to_batches(filter=rows, batch_size=ROWS, use_threads=False))
