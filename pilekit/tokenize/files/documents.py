"""The documents of token files: the file each goes into, and a table with a row per document.

While the output grows, each document is a record of 16 bytes. The table is made from the records at the end:

    shard: dictionary<string>   number: int64   subset: dictionary<string>   tokens: int32, EOD counted   file: int32

A row group holds at most 2^18 documents, of one shard. So neither writing the table nor reading a part of it needs much
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import UNLABELLED
from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.errors import PilekitError, counted, visible
from pilekit.tokenize.files.token_file import TokenFile

RECORD = np.dtype([("number", "<i8"), ("tokens", "<i4"), ("subset", "<i4")])
"""A document in a file of records; `subset` is an index into its run's list of subsets."""

Records = npt.NDArray[np.void]

Run = tuple[str, Sequence[str], int]
"""Successive documents of one shard: the shard, the names of their subsets, the number of documents."""

RECORDS = ".records"
"""The name of the file of records while an output grows."""

ROWS = 1 << 18
"""Most documents in a row group, and in a piece read or written at once."""

_NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema({"shard": _NAMES, "number": pa.int64(), "subset": _NAMES, "tokens": pa.int32(), "file": pa.int32()})


@dataclass
class Cut:
    """Where the next document goes: the file, the tokens that it holds, and the documents in all files so far."""

    file: int = 0
    tokens: int = 0
    documents: int = 0

    def place(self, lengths: npt.NDArray[np.int32], limit: int | None) -> Iterator[tuple[int, int, int]]:
        """Place the next documents, of these lengths: (file, first, last) for each file they go into.

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
                self.tokens += int(ends[last] - ends[first])
                yield self.file, first, last
            if last < count:
                self.file, self.tokens = self.file + 1, 0
            first = last


def write_documents(path: Path, records: Path, runs: Iterable[Run], limit: int | None) -> list[list[int]]:
    """Write the table from the records, which come in these runs; returns [documents, tokens] of each file."""
    cut, counts = Cut(), [[0, 0]]
    with (
        records.open("rb") as source,
        write_atomically(path) as out,
        pq.ParquetWriter(
            out, SCHEMA, compression="zstd", write_page_checksum=True, use_dictionary=["shard", "subset"]
        ) as writer,
    ):
        for shard, subsets, documents in runs:
            for done in range(0, documents, ROWS):
                rows = np.fromfile(source, RECORD, min(ROWS, documents - done))
                files = np.empty(len(rows), np.int32)
                for file, first, last in cut.place(rows["tokens"], limit):
                    files[first:last] = file
                    if file == len(counts):
                        counts.append([0, 0])
                    counts[file][0] += last - first
                    counts[file][1] += int(rows["tokens"][first:last].sum(dtype=np.int64))
                columns = [
                    pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), [shard]),
                    pa.array(rows["number"]),
                    pa.DictionaryArray.from_arrays(pa.array(rows["subset"]), list(subsets)),
                    pa.array(rows["tokens"]),
                    pa.array(files),
                ]
                writer.write_table(pa.table(columns, schema=SCHEMA))
    return counts


def read_documents(path: Path, columns: list[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """The rows `first` to `last` - 1 of the table, a batch per row group."""
    with pq.ParquetFile(path) as table:
        begin = 0
        for group in range(table.num_row_groups):
            end = begin + table.metadata.row_group(group).num_rows
            if begin < last and end > first:
                rows = table.read_row_group(group, columns).select(columns).combine_chunks()
                low, high = max(first, begin) - begin, min(last, end) - begin
                yield rows.slice(low, high - low).to_batches()[0]
            begin = end


def document_runs(
    file: TokenFile, name: str, labels: dict[str, int], *, by_table: bool = True
) -> Iterator[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.uint16], npt.NDArray[np.int64]]]:
    """(shard, numbers, codes of the labels, tokens) of successive documents of one shard, at most 2^18 at once.

    name       the shard of a file without a table
    labels     the code of each label; new labels get the next codes
    by_table   False: ignore the file's table

    Raises PilekitError for a table that does not fit its file.
    """
    done = 0
    try:
        batches = file.document_batches() if by_table else None
        if batches is None:
            for first in range(0, len(file), ROWS):
                lengths = file.lengths_of(first, first + ROWS)
                codes = np.full(len(lengths), labels.setdefault(UNLABELLED, len(labels)), np.uint16)
                yield name, np.arange(first, first + len(lengths)), codes, lengths
            return
        for batch in filter(len, batches):
            shards, subsets, lengths = batch["shard"], batch["subset"], batch["tokens"].to_numpy()
            if not np.array_equal(lengths, file.lengths_of(done, done + len(batch))):
                raise ValueError(
                    f"its tokens are not those of the index, in the {counted(len(batch), 'row')} from {done:,}"
                )
            done += len(batch)
            code_of = [labels.setdefault(label, len(labels)) for label in subsets.dictionary.to_pylist()]
            if len(labels) > MAX_SUBSETS:
                raise too_many_subsets(MAX_SUBSETS)
            codes, numbers = np.array(code_of, np.uint16)[subsets.indices], batch["number"].to_numpy()
            next_shards = np.flatnonzero(np.diff(shards.indices)) + 1
            for begin, end in pairwise([0, *next_shards.tolist(), len(batch)]):
                yield shards[begin].as_py(), numbers[begin:end], codes[begin:end], lengths[begin:end]
        if done != len(file):
            raise ValueError(f"it has {counted(done)}, not {len(file):,}")
    except (ValueError, KeyError, OSError) as error:  # Arrow raises these too.
        why = visible(str(error).split("\n", 1)[0], 200)
        raise PilekitError(f"{visible(str(file.path))}: its table of documents does not fit: {why}") from error
