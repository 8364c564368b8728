"""The documents of token files: the file each goes into, and a table with a row per document.

    shard: dictionary<string>   number: int64   subset: dictionary<string>   tokens: int32, EOD counted   file: int32

A row group holds at most 2^18 documents, of one shard. So neither writing the table nor reading a part of it needs much
memory. While a shard is tokenized, each of its documents is a record of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

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


class Run(NamedTuple):
    """Successive documents of one shard, at most `ROWS`.

    shard     the shard's name
    numbers, codes, tokens   of each document: its number, the place of its label in `labels`, its tokens
    labels    the names of subsets
    """

    shard: str
    numbers: Integers
    codes: Integers
    tokens: Integers
    labels: Collection[str]


@dataclass
class Cut:
    """Where the next document goes: the file, the tokens that it holds, and the documents in all files so far."""

    file: int = 0
    tokens: int = 0
    documents: int = 0

    def place(self, lengths: Integers, limit: int | None) -> Iterator[tuple[int, int, int, int]]:
        """Place the next documents, of these lengths: (file, first, last, tokens) for each file they go into.

        A file holds at most `limit` tokens, or one longer document. An empty file takes one document at least.
        """
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        first, count = 0, len(lengths)
        self.documents += count
        while first < count:
            last = count
            if limit is not None:
                last = int(np.searchsorted(ends, ends[first] + limit - self.tokens, side="right")) - 1
                last = max(last, first + (self.tokens == 0))
            if last > first:
                tokens = int(ends[last] - ends[first])
                self.tokens += tokens
                yield self.file, first, last, tokens
            if last < count:
                self.file, self.tokens = self.file + 1, 0
            first = last


def runs_of_records(path: Path, shard: str, labels: Collection[str]) -> Iterator[Run]:
    """The documents in a file of records."""
    with path.open("rb") as file:
        while len(rows := np.fromfile(file, RECORD, ROWS)):
            yield Run(shard, rows["number"], rows["subset"], rows["tokens"], labels)


def write_documents(path: Path, runs: Iterable[Run], limit: int | None) -> list[list[int]]:
    """Write the table; returns [documents, tokens] of each file."""
    cut, counts = Cut(), [[0, 0]]
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": ["shard", "subset"]}
    with write_atomically(path) as out, pq.ParquetWriter(out, SCHEMA, **options) as writer:
        for run in runs:
            files = np.empty(len(run.tokens), np.int32)
            for file, first, last, tokens in cut.place(run.tokens, limit):
                files[first:last] = file
                if file == len(counts):
                    counts.append([0, 0])
                counts[file][0] += last - first
                counts[file][1] += tokens
            writer.write_batch(_rows(run, files))
    return counts


def documents_of_file(
    parts: Iterable[tuple[Cut, Iterable[Run]]], limit: int | None, file: int
) -> Iterator[pa.RecordBatch]:
    """The rows of one file's documents; `parts`: the runs of all parts that it holds, and where each part begins."""
    for begin, runs in parts:
        cut = replace(begin)
        for run in runs:
            for place, first, last, _ in cut.place(run.tokens, limit):
                if place == file:
                    yield _rows(run, np.full(len(run.tokens), file, np.int32)).slice(first, last - first)


def _rows(run: Run, files: npt.NDArray[np.int32]) -> pa.RecordBatch:
    """The table's rows of these documents, which go into these files."""
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(files), np.int32)), [run.shard]),
        pa.array(run.numbers),
        pa.DictionaryArray.from_arrays(pa.array(run.codes.astype(np.int32)), list(run.labels)),
        pa.array(run.tokens.astype(np.int32)),
        pa.array(files),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def read_documents(path: Path, columns: list[str] | None = None, file: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of the table, or of one file's documents, in pieces of at most `ROWS`."""
    import pyarrow.dataset as ds

    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    table = ds.dataset(path, format=ds.ParquetFileFormat(default_fragment_scan_options=checked))
    rows = None if file is None else ds.field("file") == file
    return filter(len, table.to_batches(columns=columns, filter=rows, batch_size=ROWS, use_threads=False))
