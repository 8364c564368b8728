"""Read a shard once for what its index holds.

That costs little beside reading: the lines are decoded as everywhere (those of a large shard scanned, which takes half
the time), a block's texts are measured and hashed together, the decompressed bytes are hashed in the decoding thread,
and of a frame one newline is searched. Rows are given out as they come, so memory is that of reading, and 32 bytes a
frame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import xxhash

from pilekit.corpus import Manifest, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import DocumentBatch
from pilekit.engine import Advance
from pilekit.errors import PilekitError
from pilekit.shards.index.document_rows import DocumentRows, LineRows, rows_of
from pilekit.shards.index.format import Frames, index_schema
from pilekit.shards.index.frame_lines import FrameLines
from pilekit.shards.read.damage import BadLine, SkippedLines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.open import is_parquet, storage_of
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, OnError, line_blocks, located_errors, record_format
from pilekit.shards.read.unchanged import open_unchanged

if TYPE_CHECKING:
    import pyarrow as pa

    from pilekit.shards.read.parquet import RowBlocks, RowGroup

READ_BYTES = 1 << 20
SCANNED_FROM_BYTES = 200 << 20
"""Loading the compiled scan takes as long as it saves on so many stored bytes."""


@dataclass
class _TellingSkippedLines(SkippedLines):
    """Skipped lines of which each is told."""

    on_bad: Callable[[BadLine], None] | None = None

    def add(self, bad: BadLine) -> None:
        """Count one bad line, and tell of it."""
        SkippedLines.add(self, bad)
        if self.on_bad is not None:
            self.on_bad(bad)


class IndexScan(Iterator["pa.RecordBatch"]):
    """Reads a shard once, yielding the rows of its index; the rest is known when it is exhausted.

    lines           lines read so far; after damage those before it
    skipped         bad lines passed over so far
    content_bytes   decompressed bytes so far; for Parquet as its metadata tells them
    frames          the `Frames`, at the end; where the shard is damaged, as far as it was read
    frame_of        tells at any time in which of them a line or row begins that was read, by its number from 0
    row_groups      of Parquet, what the footer says of them
    """

    frames: Frames
    frame_of: Callable[[int], int]

    def __init__(
        self,
        shard: Shard,
        parser: LineParser,
        skipped: SkippedLines,
        advance: Advance | None,
        ahead: bool,
        on_stored: Callable[[bytes], None] | None,
    ):
        self.lines = self.content_bytes = 0
        self.skipped, self.format = skipped, parser.format
        self.row_groups: list[RowGroup] = []
        self._shard, self._parser, self._on_stored = shard, parser, on_stored
        self._hash = xxhash.xxh3_128()
        self._parquet = is_parquet(shard.path)
        self._batches = self._rows_of_parquet(advance) if self._parquet else self._rows(advance, ahead)

    @property
    def content_hash(self) -> str:
        """The xxh3_128 of the decompressed bytes so far, in hexadecimal; "" for Parquet."""
        return "" if self._parquet else self._hash.hexdigest()

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Stop reading: the decoding thread ends and the file is closed."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, advance: Advance | None, ahead: bool) -> Generator[pa.RecordBatch, None, None]:
        path = self._shard.path
        storage = storage_of(path)
        frame_lines = FrameLines(path, marks=storage == "plain")
        self.frame_of = frame_lines.frame_of
        if storage != "zstd":
            frame_lines.begin_frame(0, 0)

        def hear(piece: bytes) -> None:
            self.content_bytes += len(piece)
            self._hash.update(piece)

        listening = line_blocks(
            path,
            advance=advance,
            ahead=ahead,
            on_stored=self._on_stored,
            on_frame=lambda number, offset: frame_lines.begin_frame(offset, self.content_bytes),
            on_text=hear,
        )
        documents = LineRows(self._parser, scan=(self._shard.size or 0) >= SCANNED_FROM_BYTES)
        try:
            with located_errors(path, lambda: self.lines), listening as blocks:
                for block in blocks:
                    frame_lines.pass_lines(block, self.lines)
                    rows, count = documents.rows(block, self.lines)
                    self.lines += count
                    yield from _record_batch(rows)
        finally:
            self.frames = frame_lines.frames(self.content_bytes, self.lines)

    def _rows_of_parquet(self, advance: Advance | None) -> Generator[pa.RecordBatch, None, None]:
        from pilekit.shards.read.parquet import parquet_batches, row_groups

        path = self._shard.path
        self.frames = Frames(*[np.zeros(0, dtype=np.int64)] * 4)
        with open_unchanged(path) as (file, _):
            self.row_groups = row_groups(file, path)
            rows, sizes = [group.rows for group in self.row_groups], [group.size for group in self.row_groups]
            first, before = (np.cumsum([0, *counts[:-1]], dtype=np.int64)[: len(rows)] for counts in (rows, sizes))
            self.frames = Frames(np.arange(len(rows)), before, first, np.zeros_like(before))
            self.frame_of = lambda row: int(np.searchsorted(first, row, side="right")) - 1
            if self._on_stored is not None:
                file.seek(0)
                with located_errors(path, lambda: 0):
                    while piece := file.read(READ_BYTES):
                        self._on_stored(piece)
            read: list[RowBlocks] = []
            try:
                for batch in parquet_batches(file, self._parser, 0, MAX_DOCUMENT_BYTES, advance, read.append):
                    self.lines = int(batch.numbers[-1]) + 1
                    yield from index_rows(batch)
            finally:
                self.lines = read[0].read if read else 0
        self.lines, self.content_bytes = sum(rows), sum(sizes)


def index_rows(batch: DocumentBatch) -> Iterator[pa.RecordBatch]:
    """The rows of these documents in an index; nothing where there are none."""
    return _record_batch(rows_of(batch))


def _record_batch(rows: DocumentRows) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if len(rows.numbers):
        codes = pa.array(rows.codes, pa.int32())
        subsets = pa.DictionaryArray.from_arrays(codes, pa.array(rows.labels, pa.string()))
        columns = [rows.numbers, subsets, rows.text_bytes, rows.text_hashes]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=index_schema())


def scan_shard(
    shard: Shard,
    *,
    manifest: Manifest | None = None,
    on_error: OnError = "raise",
    advance: Advance | None = None,
    ahead: bool = True,
    on_bad: Callable[[BadLine], None] | None = None,
    on_stored: Callable[[bytes], None] | None = None,
) -> IndexScan:
    """Read a shard for what its index holds; arguments as in `read`, and two listeners.

    on_bad      told of each bad line, which is then skipped whatever `on_error` says
    on_stored   given all stored bytes in order, from the decoding thread

    A damaged shard is a `PilekitError`, raised from the scan after all rows before the damage.
    """
    if shard.path == STANDARD_INPUT:
        raise PilekitError("standard input (-) has no index, as it cannot be read again; save it to a file first")
    skipped = _TellingSkippedLines(on_bad=on_bad)
    skip = on_error == "skip" or on_bad is not None
    parser = LineParser(shard.path, shard.name, record_format(manifest), None, skipped if skip else None)
    return IndexScan(shard, parser, skipped, advance, ahead, on_stored)
