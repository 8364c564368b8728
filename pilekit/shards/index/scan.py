"""`ShardScan`: read a shard once and collect everything that its index holds.

This takes little more time than reading. Lines are decoded (in a long shard they are scanned, in half the time), a
block's texts are measured and hashed together, the decompressed bytes are hashed in the decoding thread, and one
newline is searched for each frame. Memory is that of reading, plus 32 bytes a frame.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from pilekit.corpus import Manifest, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.index.document_rows import DocumentRows, LineRows, index_rows
from pilekit.shards.index.metadata import MOST_FRAMES, Frames
from pilekit.shards.read.change_check import open_unchanged
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import LineBlock, whole_lines
from pilekit.shards.read.open import storage_of
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, OnError, located_errors, text_pieces
from pilekit.workers import Advance

if TYPE_CHECKING:
    from pilekit.shards.read.parquet import RowBlocks, RowGroup

READ_BYTES = 1 << 20
MARK_BYTES = 1 << 20
"""The least distance between the marks of a file without frames."""
SCANNED_FROM_BYTES = 200 << 20
"""Loading the compiled scan takes as long as it saves on this many stored bytes."""


class ShardScan:
    """Reads a shard once: `rows` yields its documents, and the other fields are complete when it is exhausted.

    The rows have labels as the records spell them.

    lines           lines read so far; after damage the lines before it
    skipped         bad lines passed over so far
    content_bytes   decompressed bytes so far; for Parquet as its metadata states
    frames          the `Frames`, at the end; of a damaged shard, as far as it was read
    row_groups      of Parquet, from its footer
    """

    frames: Frames

    def __init__(
        self,
        shard: Shard,
        *,
        manifest: Manifest | None = None,
        on_error: OnError = "raise",
        advance: Advance | None = None,
        ahead: bool = True,
        on_stored: Callable[[bytes], None] | None = None,
    ):
        """Arguments as in `read`, and `on_stored`: called with all stored bytes in order, from the decoding thread."""
        if shard.path == STANDARD_INPUT:
            raise PilekitError("standard input (-) has no index, as it cannot be read again; save it to a file first")
        self.lines = self.content_bytes = 0
        self.skipped, self.format = SkippedLines(), RecordFormat.of(manifest)
        self.row_groups: list[RowGroup] = []
        self._shard, self._advance, self._ahead, self._on_stored = shard, advance, ahead, on_stored
        self._storage = storage_of(shard.path)
        on_bad = self.skipped if on_error == "skip" else None
        self._parser = LineParser(shard.path, shard.name, replace(self.format, names=None), None, on_bad)
        self._hash = xxhash.xxh3_128()

    @property
    def content_hash(self) -> str:
        """The xxh3_128 of the decompressed bytes so far, in hexadecimal; "" for Parquet."""
        return "" if self._storage == "parquet" else self._hash.hexdigest()

    def rows(self) -> Generator[DocumentRows, None, None]:
        """The shard's documents, once; `PilekitError` for damage, after all rows before it."""
        return self._rows_of_parquet() if self._storage == "parquet" else self._rows_of_lines()

    def _rows_of_lines(self) -> Generator[DocumentRows, None, None]:
        path = self._shard.path
        frame_lines = FrameLines(path, marks=self._storage == "plain")
        if self._storage != "zstd":
            frame_lines.begin_frame(0, 0)

        def hash_text(piece: bytes) -> None:
            self.content_bytes += len(piece)
            self._hash.update(piece)

        reading = text_pieces(
            path,
            advance=self._advance,
            ahead=self._ahead,
            on_stored=self._on_stored,
            on_frame=lambda number, offset: frame_lines.begin_frame(offset, self.content_bytes),
            on_text=hash_text,
        )
        documents = LineRows(self._parser, scan=(self._shard.size or 0) >= SCANNED_FROM_BYTES)
        try:
            with located_errors(path, lambda: self.lines), reading as pieces:
                for block in whole_lines(pieces, MAX_DOCUMENT_BYTES):
                    frame_lines.pass_lines(block, self.lines)
                    for rows in documents.rows(block):
                        self.lines = documents.lines
                        yield rows
                    self.lines = documents.lines
        finally:
            self.frames = frame_lines.frames(self.content_bytes, self.lines)

    def _rows_of_parquet(self) -> Generator[DocumentRows, None, None]:
        from pilekit.shards.read.parquet import parquet_batches, row_groups

        path = self._shard.path
        self.frames = Frames(*[np.zeros(0, dtype=np.int64)] * 4)
        with open_unchanged(path) as (file, _):
            self.row_groups = row_groups(file, path)
            rows, sizes = [group.rows for group in self.row_groups], [group.size for group in self.row_groups]
            first, before = (np.cumsum([0, *counts[:-1]], dtype=np.int64)[: len(rows)] for counts in (rows, sizes))
            self.frames = Frames(np.arange(len(rows)), before, first, np.zeros_like(before))
            if self._on_stored is not None:
                file.seek(0)
                with located_errors(path, lambda: 0):
                    while piece := file.read(READ_BYTES):
                        self._on_stored(piece)
            read: list[RowBlocks] = []
            try:
                for batch in parquet_batches(file, self._parser, 0, MAX_DOCUMENT_BYTES, self._advance, read.append):
                    self.lines = int(batch.numbers[-1]) + 1
                    yield index_rows(batch)
            finally:
                self.lines = read[0].read if read else 0
        self.lines, self.content_bytes = sum(rows), sum(sizes)


class FrameLines:
    """Collects the `Frames` of a shard that has lines, while its lines are read.

    The decoding thread announces each frame; then the frame's text arrives as blocks of whole lines, in order. For each
    frame, one newline search finds the first line that begins at or after the frame's start, and one newline count
    gives the number of that line. No other facts about lines are kept.

    path     the shard, for messages
    marks    the file is plain: instead of announced frames, a line is marked about every MiB
    """

    def __init__(self, path: str, *, marks: bool):
        self.path, self.marks = path, marks
        # 32 bytes a frame, where lists of Python's integers would take four times as much.
        self._offsets, self._text_offsets = array("q"), array("q")
        self._lines, self._begins = array("q"), array("q")
        self._at = 0  # where, in the decompressed text, the next block begins

    def begin_frame(self, offset: int, text_offset: int) -> None:
        """A frame begins at this stored byte, with this much text before it."""
        if len(self._offsets) == MOST_FRAMES:
            raise PilekitError(
                f"{self.path}: has more than {MOST_FRAMES:,} frames, too many for an index; cut it into "
                "larger ones with `pilekit reframe`"
            )
        self._offsets.append(offset)
        self._text_offsets.append(text_offset)

    def pass_lines(self, block: LineBlock, line: int) -> None:
        """Take the next block, whose first line has this number; the frames in its text have been announced."""
        at = self._at
        if block.head is not None:
            self._resolve(at, line, at)
            line, at = line + 1, at + len(block.head) + 1
        if block.begin < block.end:
            text, here = block.data, block.begin
            origin = at - here
            last = max(here, text.rfind(b"\n", here, block.end - 1) + 1)
            while (wanted := self._next()) is not None and wanted - origin <= last:
                if wanted - origin > here:
                    begin = text.find(b"\n", wanted - origin - 1) + 1
                    between = np.frombuffer(text, dtype=np.uint8, count=begin - here, offset=here)
                    line, here = line + int(np.count_nonzero(between == ord("\n"))), begin  # 4 times .count's speed
                self._resolve(wanted, line, origin + here)
            at = origin + block.end
        self._at = at

    def frames(self, content_bytes: int, lines: int) -> Frames:
        """The frames, after all lines have passed."""
        if not self.marks:  # There are no marks where no line begins.
            self._resolve(content_bytes, lines, content_bytes)
        count = len(self._lines)
        offset, text_offset, line, begin = (
            np.array(column[:count], dtype=np.int64)
            for column in (self._offsets, self._text_offsets, self._lines, self._begins)
        )
        if self.marks:
            return Frames(begin, begin, line, np.zeros_like(begin))
        ends = np.append(text_offset[1:], content_bytes)
        return Frames(offset, text_offset, line, np.minimum(begin, ends) - text_offset)

    def _next(self) -> int | None:
        """Where in the text the next frame without a line begins; None: it is not announced yet."""
        found = len(self._lines)
        return self._text_offsets[found] if found < len(self._text_offsets) else None

    def _resolve(self, up_to: int, line: int, begin: int) -> None:
        """For the frames that begin at or before `up_to`, `line` is the first line, and it begins at `begin`."""
        while (wanted := self._next()) is not None and wanted <= up_to:
            self._lines.append(line)
            self._begins.append(begin)
            if self.marks:
                self.begin_frame(0, begin + MARK_BYTES)
