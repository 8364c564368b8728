"""`ShardScan`: read a shard once and collect everything that its index holds.

This takes little more time than reading. `document_rows` gives the documents. Meanwhile, `FrameLines` hashes the
decompressed bytes in the decoding thread, and searches for one newline in each frame. Memory is that of reading, plus
32 bytes a frame.
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
from pilekit.errors import PilekitError
from pilekit.shards.index.document_rows import DocumentRows, document_rows
from pilekit.shards.index.metadata import MOST_FRAMES, Frames
from pilekit.shards.read.blocks import locate_errors
from pilekit.shards.read.change_check import open_unchanged
from pilekit.shards.read.json_records import LineParser, OnError
from pilekit.shards.read.lines import LineBlock, LineCount
from pilekit.shards.read.open import ReadOptions, Storage, storage_of
from pilekit.shards.read.read_errors import SkippedLines

if TYPE_CHECKING:
    from pilekit.shards.read.parquet import RowGroup

READ_BYTES = 1 << 20
MARK_BYTES = 1 << 20
"""The least distance between the marks of a file without frames."""


class ShardScan:
    """Reads a shard once: `rows` yields its documents, and the other fields are complete when it is exhausted.

    The rows have labels as the records spell them.

    lines           lines read so far; after damage the lines before it
    skipped         bad lines passed over so far
    content_bytes   decompressed bytes so far; for Parquet as its metadata states
    content_hash    the xxh3_128 of the decompressed bytes so far, in hexadecimal; "" for Parquet
    frames          the `Frames`, at the end; of a damaged shard, as far as it was read
    row_groups      of Parquet, from its footer
    """

    frames: Frames

    def __init__(
        self,
        shard: Shard,
        options: ReadOptions | None = None,
        *,
        manifest: Manifest | None = None,
        on_error: OnError = "raise",
        see_stored: Callable[[bytes], None] | None = None,
        mark_bytes: int = MARK_BYTES,
    ):
        """Arguments as in `read`, and:

        options      say how the shard is read; None: as by a process that reads nothing else
        see_stored   receives all stored bytes in order, in the decoding thread
        mark_bytes   the least distance between the marks of a file without frames
        """
        if shard.path == STANDARD_INPUT:
            raise PilekitError("standard input (-) has no index, as it cannot be read again; save it to a file first")
        self.skipped = SkippedLines()
        self.row_groups: list[RowGroup] = []
        self._shard, self._storage = shard, storage_of(shard.path)
        self._options = ReadOptions(stored=shard.size or 0) if options is None else options
        parser = LineParser.for_shard(shard, manifest, None, on_error, self.skipped)
        self.format, self._parser = parser.format, replace(parser, format=replace(parser.format, names=None))
        self._see_stored = see_stored
        self._watch = FrameLines(shard.path, self._storage, see_stored, mark_bytes)

    @property
    def lines(self) -> int:  # noqa: D102
        return self._watch.count.lines

    @property
    def content_bytes(self) -> int:  # noqa: D102
        return self._watch.content_bytes

    @property
    def content_hash(self) -> str:  # noqa: D102
        return "" if self._storage == "parquet" else self._watch.hash.hexdigest()

    def rows(self) -> Generator[DocumentRows, None, None]:
        """The shard's documents, once; `PilekitError` for damage, after all rows before it."""
        self.frames = Frames(*[np.zeros(0, dtype=np.int64)] * 4)
        if self._storage == "parquet":
            self._read_footer()
        try:
            yield from document_rows(self._shard, self._parser, self._options, watch=self._watch)
        finally:
            if self._storage != "parquet":
                self.frames = self._watch.frames()
        self._watch.content_bytes += sum(group.size for group in self.row_groups)

    def _read_footer(self) -> None:
        """Take the row groups of a Parquet shard as its frames, and see its stored bytes."""
        from pilekit.shards.read.parquet import row_groups

        path = self._shard.path
        with open_unchanged(path) as (file, _):
            self.row_groups = row_groups(file, path)
            rows = np.array([group.rows for group in self.row_groups], np.int64)
            sizes = np.array([group.size for group in self.row_groups], np.int64)
            # What lies before a group is the sum of all groups so far without the group itself.
            self.frames = Frames(
                np.arange(len(rows)), np.cumsum(sizes) - sizes, np.cumsum(rows) - rows, np.zeros_like(rows)
            )
            if self._see_stored is not None:
                file.seek(0)
                with locate_errors(path, lambda: 0):
                    while piece := file.read(READ_BYTES):
                        self._see_stored(piece)


class FrameLines:
    """Collects the `Frames` of a shard that has lines, and hashes its text, while it is read; a `ShardWatch`.

    The decoding thread announces each frame; then the frame's text arrives as blocks of whole lines, in order. For each
    frame, one newline search finds the first line that begins at or after the frame's start, and one newline count
    gives the number of that line. No other facts about lines are kept.

    path            the shard, for messages
    storage         how it is stored; in a plain file, instead of announced frames, lines are marked
    see_stored      receives all stored bytes
    mark_bytes      the least distance between the marks
    count           counts the lines read so far
    content_bytes   decompressed bytes so far, and `hash` their xxh3_128
    """

    def __init__(
        self, path: str, storage: Storage, see_stored: Callable[[bytes], None] | None, mark_bytes: int = MARK_BYTES
    ):
        self.path, self.marks, self.mark_bytes = path, storage == "plain", mark_bytes
        self.count, self.content_bytes = LineCount(), 0
        self.hash = xxhash.xxh3_128()
        self._see_stored = see_stored
        # 32 bytes a frame, where lists of Python's integers would take four times as much.
        self._offsets, self._text_offsets = array("q"), array("q")
        self._lines, self._begins = array("q"), array("q")
        self._at = 0  # where, in the decompressed text, the next block begins
        if storage != "zstd":
            self._begin_frame(0, 0)

    def see_stored(self, data: bytes) -> None:
        """Pass the stored bytes on."""
        if self._see_stored is not None:
            self._see_stored(data)

    def see_frame(self, number: int, offset: int) -> None:
        """A frame begins at this stored byte."""
        self._begin_frame(offset, self.content_bytes)

    def see_text(self, piece: bytes) -> None:
        """Hash the decompressed bytes."""
        self.content_bytes += len(piece)
        self.hash.update(piece)

    def _begin_frame(self, offset: int, text_offset: int) -> None:
        if len(self._offsets) == MOST_FRAMES:
            raise PilekitError(
                f"{self.path}: has more than {MOST_FRAMES:,} frames, too many for an index; cut it into "
                "larger ones with `pilekit reframe`"
            )
        self._offsets.append(offset)
        self._text_offsets.append(text_offset)

    def see_block(self, block: LineBlock) -> LineBlock:
        """Find the first lines of the frames that begin in the next block; they have been announced."""
        line = self.count.lines
        at = self._at
        if block.head is not None:
            self._resolve(at, line, at)
            line, at = line + 1, at + len(block.head) + 1
        if block.begin < block.end:
            text, here = block.data, block.begin
            origin = at - here
            last = max(here, text.rfind(b"\n", here, block.end - 1) + 1)
            while (frame_begin := self._next()) is not None and frame_begin - origin <= last:
                if frame_begin - origin > here:
                    begin = text.find(b"\n", frame_begin - origin - 1) + 1
                    between = np.frombuffer(text, dtype=np.uint8, count=begin - here, offset=here)
                    line, here = line + int(np.count_nonzero(between == ord("\n"))), begin  # 4 times .count's speed
                self._resolve(frame_begin, line, origin + here)
            at = origin + block.end
        self._at = at
        return block

    def frames(self) -> Frames:
        """The frames, after all blocks have been seen and their lines counted."""
        if not self.marks:  # There are no marks where no line begins.
            self._resolve(self.content_bytes, self.count.lines, self.content_bytes)
        count = len(self._lines)
        offset, text_offset, line, begin = (
            np.array(column[:count], dtype=np.int64)
            for column in (self._offsets, self._text_offsets, self._lines, self._begins)
        )
        if self.marks:
            return Frames(begin, begin, line, np.zeros_like(begin))
        ends = np.append(text_offset[1:], self.content_bytes)
        return Frames(offset, text_offset, line, np.minimum(begin, ends) - text_offset)

    def _next(self) -> int | None:
        """Where in the text the next frame without a line begins; None: it is not announced yet."""
        resolved = len(self._lines)
        return self._text_offsets[resolved] if resolved < len(self._text_offsets) else None

    def _resolve(self, up_to: int, line: int, begin: int) -> None:
        """For the frames that begin at or before `up_to`, `line` is the first line, and it begins at `begin`."""
        while (frame_begin := self._next()) is not None and frame_begin <= up_to:
            self._lines.append(line)
            self._begins.append(begin)
            if self.marks:
                self._begin_frame(0, begin + self.mark_bytes)
