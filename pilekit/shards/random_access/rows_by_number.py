"""Rows of a Parquet shard by their number: only the row group of a row is decoded.

Row groups are its frames, and its own footer tells where they are. One is held or, where its rows turn out to take more
than 64 MiB, gone through from its first row on (see held_frames.py): a row in the middle cannot be had without those
before it. Its size beforehand says little, as a dictionary makes gigabytes out of a kilobyte.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.shards.random_access.frame_lru import HELD_BYTES, ForwardPass, HeldFrames
from pilekit.shards.read.json_records import BadRecord, LineParser, document_of
from pilekit.shards.read.open import open_stored
from pilekit.shards.read.parquet import RowBlocks, format_of, located_rows, open_table
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES

Block = list[pa.RecordBatch]


class RowsByNumber:
    """The rows of one Parquet shard; `lines` is how many it has, `format` where they keep text and label."""

    def __init__(self, path: str, wanted: RecordFormat, held: HeldFrames[pa.Table]):
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
        self._pass: ForwardPass[Block] | None = None

    def close(self) -> None:
        """Close the file."""
        if self._pass is not None:
            self._pass.blocks.close()
        self._file.close()

    def is_near(self, number: int) -> bool:
        """Whether this row is reached without going through a row group; 0 <= number < lines."""
        return self._group_of(number) not in self._large

    def record(self, number: int) -> object:
        """This row as what a line of JSON would decode to; `BadRecord` if it is none, `PilekitError` if unreadable."""
        group = self._group_of(number)
        with located_rows(self.path, lambda: number):
            rows = self._rows_of_held(group)
            row = self._row_of_pass(number, group) if rows is None else rows.slice(number - int(self._begins[group]), 1)
        try:
            return row.to_pylist()[0]
        except UnicodeDecodeError:
            raise BadRecord("is not valid UTF-8") from None

    def batch(self, numbers: npt.NDArray[np.int64], parser: LineParser) -> DocumentBatch:
        """The documents on these rows, which increase; what is none, the parser is told of."""
        texts, labels, kept = [], [], []
        for index, (number, record) in enumerate(zip(numbers.tolist(), self._records(numbers), strict=True)):
            try:
                text, label = document_of(self.record(number) if record is None else record, self.format)
            except BadRecord as bad:
                parser.bad(number, str(bad))
                continue
            texts.append(text)
            labels.append(label)
            kept.append(index)
        return DocumentBatch(texts, labels, parser.shard, numbers[kept], format=parser.format)

    def _records(self, numbers: npt.NDArray[np.int64]) -> Iterator[object]:
        """These rows as `record` gives them, or None where they must be asked for one by one."""
        of_each = np.searchsorted(self._begins, numbers, side="right") - 1
        for group in np.unique(of_each).tolist():
            some = numbers[of_each == group]
            records: list[Any] = [None] * len(some)
            with located_rows(self.path, partial(int, some[0])):
                rows = self._rows_of_held(group)
            if rows is not None:
                # One by one takes three times as long.
                with suppress(UnicodeDecodeError):
                    records = rows.take(some - self._begins[group]).to_pylist()
            yield from records

    def _group_of(self, number: int) -> int:
        return int(np.searchsorted(self._begins, number, side="right")) - 1

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

    def _row_of_pass(self, number: int, group: int) -> pa.Table:
        going, self._pass = self._pass, None
        if going is None or not going.leads_to(group, number):
            going = ForwardPass(group, int(self._begins[group]), self._blocks(group))
        found = going.find(number)
        if found is None:
            raise pa.ArrowInvalid(f"row group {group} has fewer rows than it should")
        self._pass = going
        block, place = found
        return pa.Table.from_batches([block[place]])

    def _blocks(self, group: int) -> Generator[Block, None, None]:
        rows = RowBlocks(self._table, self._columns, self.path, MAX_DOCUMENT_BYTES, groups=[group])
        yield from rows
