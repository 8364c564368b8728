"""Blocks of a shard: the lines of a piece of text, uncut (`LineBlock`), or decoded rows of Parquet (`RowBlock`).

    for part in numbered_parts(blocks):
        part.numbers, part.lines

Lines are cut without copying them. A line is a `memoryview` into its piece of text (7.5 GB/s; `bytes.split` copies and
gives 2.1). Only a line that crosses the border between two pieces is copied. Memory is one piece and one line, and the
length of a line is bounded.

A kilobyte of zstd may hold millions of lines, and a line in memory takes 200 bytes and more. So runs of blank lines
(white space alone) are only counted, at the speed of a search, and at most `LINES_AT_A_TIME` lines are in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import methodcaller
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.documents import RecordFormat
from pilekit.shards.read.read_errors import LineTooLong

Line = bytes | memoryview

LINES_AT_A_TIME = 1 << 15

_SPACE = re.compile(rb"\s*")
_BLANK_LINES = re.compile(rb"\s*\n")
"""Blank lines up to the last newline of a run of white space; the greedy pattern steps back to it."""


@dataclass(slots=True)
class LineCount:
    """The number of lines (of Parquet: rows) that were read so far; whoever cuts a block counts them here."""

    lines: int = 0


def numbered_parts(blocks: Iterable[LineBlock | RowBlock]) -> Iterator[NumberedLines | RowBlock]:
    """The lines of all blocks with their numbers, or the rows."""
    # `map` holds no block. A generator would hold one, and with it a long line.
    return chain.from_iterable(map(methodcaller("parts"), blocks))


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows of a Parquet shard: at most 1,024, or about 4 MiB.

    numbers   int64 [rows]
    records   the record that a line of JSON would give for each row, or a `BadRecord`
    format    where the records keep text and label
    """

    numbers: npt.NDArray[np.int64]
    records: list[object]
    format: RecordFormat

    def parts(self) -> Iterator[RowBlock]:
        """The block itself."""
        yield self


class NumberedLines(NamedTuple):
    """Lines that are not blank.

    numbers   int64 [lines]
    lines     without their newlines
    end       the number of the line after them and after the blank lines that follow them
    """

    numbers: npt.NDArray[np.int64]
    lines: list[Line]
    end: int


@dataclass(frozen=True, slots=True)
class LineBlock:
    r"""Whole lines: `head`, then the lines of `data[begin:end]`.

    head              a line that crossed the border of two pieces, without its ``\n``; None: there is none
    data, begin, end  the other lines, each followed by its ``\n``
    count             the number of the shard's lines so far, which is the number of the block's first line
    """

    head: Line | None
    data: bytes
    begin: int
    end: int
    count: LineCount

    def parts(self, at_a_time: int = LINES_AT_A_TIME) -> Iterator[NumberedLines]:
        """The lines that are not blank, in lists of at most `at_a_time`; counts them."""
        count = self.count
        lines: list[Line] = []
        blank: list[tuple[int, int]] = []  # (lines before a run of blank lines, how many are blank)
        if self.head is not None and _SPACE.fullmatch(self.head) is None:
            lines.append(self.head)
        elif self.head is not None:
            blank.append((0, 1))
        data, view = self.data, memoryview(self.data)
        find, append, run_at = data.find, lines.append, _BLANK_LINES.match
        start, end = self.begin, self.end
        while start < end:
            if data[start] <= 32 and (run := run_at(data, start, end)) is not None:
                newlines = np.frombuffer(data, np.uint8, run.end() - start, start) == 10
                blank.append((len(lines), int(np.count_nonzero(newlines))))
                start = run.end()
            else:
                stop = find(b"\n", start)
                append(view[start:stop])
                start = stop + 1
            if len(lines) >= at_a_time or len(blank) >= at_a_time:
                part = [_numbered(lines, blank, count)]
                lines, blank = [], []
                append = lines.append
                yield part.pop()
        part = [_numbered(lines, blank, count)]
        del lines, append, self, data, view, find  # The consumer alone holds a long line.
        yield part.pop()


def _numbered(lines: list[Line], blank: list[tuple[int, int]], count: LineCount) -> NumberedLines:
    """Lines of a block with their numbers, from `count` on; counts them and the blank ones."""
    # Entry i becomes the number of blank lines before line i; the last entry is the number of all.
    before = np.zeros(len(lines) + 1, np.int64)
    for place, blanks in blank:
        before[place] += blanks
    before = np.cumsum(before)
    first, count.lines = count.lines, count.lines + len(lines) + int(before[-1])
    return NumberedLines(first + np.arange(len(lines)) + before[:-1], lines, count.lines)


def whole_lines(pieces: Iterator[bytes], max_line_bytes: int, count: LineCount) -> Iterator[LineBlock]:
    r"""Yield the whole lines of each piece; a last line without newline counts too.

    All lines in order equal ``b"".join(pieces).split(b"\n")`` without the empty string after a final newline. Raises
    `LineTooLong` as soon as a line exceeds `max_line_bytes`, before the line is assembled. The blocks get `count`.
    """
    # A bytearray grows in place: separate pieces of a line of 500 MB would fragment the heap.
    carried = bytearray()
    for piece in pieces:
        first = piece.find(b"\n")
        if len(carried) + (len(piece) if first < 0 else first) > max_line_bytes:
            raise LineTooLong(0)
        if first < 0:
            carried += piece
            continue
        end = piece.rfind(b"\n") + 1
        if carried:
            carried += memoryview(piece)[:first]
            block = [LineBlock(memoryview(carried).toreadonly(), piece, first + 1, end, count)]
        else:
            block = [LineBlock(None, piece, 0, end, count)]
        if len(piece) > max_line_bytes:
            start, before = block[0].begin, int(bool(carried))
            while start < len(piece):
                stop = piece.find(b"\n", start)
                if (stop if stop >= 0 else len(piece)) - start > max_line_bytes:
                    raise LineTooLong(before)
                start, before = (stop + 1 if stop >= 0 else len(piece)), before + 1
        carried = bytearray(memoryview(piece)[end:])
        yield block.pop()  # Drop this reference: the consumer alone holds a long line.
    if carried:
        yield LineBlock(memoryview(carried).toreadonly(), b"", 0, 0, count)
