"""Find the first line of each frame while the shard's lines are read.

The decoding thread announces each frame; then the frame's text arrives as blocks of whole lines, in order. For each
frame, one newline search finds the first line that begins at or after the frame's start, and one newline count gives
the number of that line. No other facts about lines are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from pilekit.errors import PilekitError, visible
from pilekit.shards.index.metadata import MOST_FRAMES, Frames
from pilekit.shards.read.lines import LineBlock

MARK_BYTES = 1 << 20
"""The least distance between the marks of a file without frames."""


class FrameLines:
    """Collects the `Frames` of a shard that has lines.

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
                f"{visible(self.path)}: has more than {MOST_FRAMES:,} frames, too many for an index; cut it into "
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

    def frame_of(self, line: int) -> int:
        """The frame (or mark) in which this line begins; the line has passed."""
        return bisect_right(self._lines, line) - 1

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
