"""Rows of a Parquet shard by their number: only the row group of a row is decoded.

Row groups take the place of frames, and the file's footer gives their places. A decoded row group is held in memory if
it fits. Its stored size says little about the decoded size: a dictionary can turn a kilobyte into gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.documents import RecordFormat
from pilekit.shards.random_access.frame_cache import FrameLRU
from pilekit.shards.read.lines import LineCount
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES, open_stored
from pilekit.shards.read.parquet import RowBlocks, decode_rows, format_of, locate_rows, open_table

Int64 = npt.NDArray[np.int64]


class RowsByNumber:
    """The rows of one Parquet shard; `lines` is their number, `format` names the fields of text and label.

    all_fit   whether all row groups can be held, by the sizes in the footer
    """

    def __init__(self, path: str, expected: RecordFormat, frames: FrameLRU):
        self.path, self.frames = path, frames
        self._file: BinaryIO = open_stored(path, scattered=True)[0]
        with locate_rows(path, lambda: 0):
            self._table = open_table(self._file, self._file.seek(0, 2))
            self.format = format_of(self._table, expected, path)
        metadata = self._table.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self.all_fit = all(group.total_byte_size <= frames.held_bytes for group in groups)
        self._begins = np.cumsum([0, *(group.num_rows for group in groups)])
        self.lines = int(self._begins[-1])
        # A record needs text, label and "meta"; without "meta" it needs all fields.
        names = {self.format.text_field, self.format.label_path[0], "meta"}
        self._columns = sorted(names) if "meta" in self._table.schema_arrow.names else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def records(self, numbers: Int64) -> Iterator[object]:
        """These rows, by increasing number, as decoded JSON records; a `BadRecord` for each bad row.

        The row group is held when its last row has been taken.
        """
        of_each = np.searchsorted(self._begins, numbers, side="right") - 1
        for group in np.unique(of_each).tolist():
            in_group = numbers[of_each == group]
            with locate_rows(self.path, partial(int, in_group[0])):
                yield from self._records_of(group, in_group - self._begins[group])

    def _records_of(self, group: int, places: Int64) -> Iterator[object]:
        table = self.frames.get((self.path, group))
        if table is not None:
            yield from decode_rows(table.take(places))
            return
        read = size = 0
        tables: list[pa.Table] = []
        for block in RowBlocks(self._table, self._columns, self.path, MAX_DOCUMENT_BYTES, LineCount(), groups=[group]):
            rows = pa.Table.from_batches(block).combine_chunks()
            yield from decode_rows(rows.take(places[(places >= read) & (places < read + len(rows))] - read))
            read, size = read + len(rows), size + rows.nbytes
            if size <= self.frames.held_bytes:
                tables.append(rows)
                continue
            tables.clear()
            if read > places[-1]:
                return
        if read <= places[-1]:
            raise pa.ArrowInvalid(f"row group {group} has fewer rows than it should")
        if tables:
            self.frames.add((self.path, group), pa.concat_tables(tables), size)
