"""Rows of a Parquet shard by their number: only the row group of a row is decoded.

Row groups are its frames, and its own footer tells where they are. A row group is held or, where its rows turn out to
take more than 64 MiB, read from its first row on. Its size beforehand says little: a dictionary makes gigabytes out of
a kilobyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.documents import RecordFormat
from pilekit.shards.random_access.frame_lru import HELD_BYTES, FrameLRU
from pilekit.shards.read.open import open_stored
from pilekit.shards.read.parquet import RowBlocks, decoded_rows, format_of, located_rows, open_table
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES


class RowsByNumber:
    """The rows of one Parquet shard; `lines` is how many it has, `format` where they keep text and label."""

    def __init__(self, path: str, wanted: RecordFormat, held: FrameLRU[pa.Table]):
        self.path, self.held = path, held
        self._file: BinaryIO = open_stored(path, scattered=True)[0]
        with located_rows(path, lambda: 0):
            self._table = open_table(self._file, self._file.seek(0, 2))
            self.format = format_of(self._table, wanted, path)
        metadata = self._table.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self._begins = np.cumsum([0, *(group.num_rows for group in groups)])
        self.lines = int(self._begins[-1])
        self._large = {number for number, group in enumerate(groups) if group.total_byte_size > HELD_BYTES}
        # Of a record the text, the label and what else it calls "meta" is wanted or, where it has no "meta", all.
        names = {self.format.text_field, self.format.label_path[0], "meta"}
        self._columns = sorted(names) if "meta" in self._table.schema_arrow.names else None

    @property
    def all_fit(self) -> bool:
        """Whether all row groups can be held, by what the footer says."""
        return not self._large

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def records(self, numbers: npt.NDArray[np.int64]) -> Iterator[object]:
        """These rows, which increase, as what lines of JSON would decode to; a `BadRecord` for those that are none."""
        of_each = np.searchsorted(self._begins, numbers, side="right") - 1
        for group in np.unique(of_each).tolist():
            some = numbers[of_each == group]
            with located_rows(self.path, partial(int, some[0])):
                rows = self._rows_of_held(group)
                if rows is not None:
                    yield from decoded_rows(rows.take(some - self._begins[group]))
                    continue
                begin = int(self._begins[group])
                for block in self._blocks(group):
                    here = some[(some >= begin) & (some < begin + len(block))] - begin
                    for place in here.tolist():
                        yield from decoded_rows(pa.Table.from_batches([block[place]]))
                    begin += len(block)
                    if begin > some[-1]:
                        break
                else:
                    raise pa.ArrowInvalid(f"row group {group} has fewer rows than it should")

    def _rows_of_held(self, group: int) -> pa.Table | None:
        """The rows of the group, if it can be held."""
        if group in self._large:
            return None
        rows = self.held.get((self.path, group))
        if rows is None:
            tables, size = [], 0
            for block in self._blocks(group):
                tables.append(pa.Table.from_batches(block).combine_chunks())
                size += tables[-1].nbytes
                if size > HELD_BYTES:
                    self._large.add(group)
                    return None
            rows = pa.concat_tables(tables)
            self.held.add((self.path, group), rows, size)
        return rows

    def _blocks(self, group: int) -> Iterator[list[pa.RecordBatch]]:
        return iter(RowBlocks(self._table, self._columns, self.path, MAX_DOCUMENT_BYTES, groups=[group]))
