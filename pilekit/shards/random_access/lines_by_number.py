"""Lines of a shard by their number: through its index, or in order from the beginning.

With an index only the frames in which the lines lie are decoded. The index is believed only as far as decoding bears it
out: a frame must have the size it tells, and as many lines, beginning where it says. Without an index, and in a shard
with frames too long to hold, as the released ones are, the shard is read from its beginning up to the last line wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, pairwise
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shard import is_url
from pilekit.errors import PilekitError, visible
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.random_access.frame_lru import HELD_BYTES, FrameLRU, FrameText
from pilekit.shards.read.lines import Line, LineBlock, whole_lines
from pilekit.shards.read.open import open_stored
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, CountedFile, gunzipped, line_blocks, located_errors
from pilekit.shards.read.zstd_frames import PIECE_BYTES, decompress_frame_at, decompress_whole

SOON_DECODED = 2 << 20
"""Frames decoded for many lines are not held up to so many bytes: the next request is for other frames."""

READ_AT_ONCE = 8 << 20
"""So many stored bytes of neighbouring frames are read with one call, which is one request to a store."""

Int64 = npt.NDArray[np.int64]


class LinesByNumber:
    """The lines of one shard that is not Parquet and has an index; `lines` is how many it has.

    path    where the shard is
    index   where its frames lie
    held    where decoded frames are held
    cache   where the stored bytes of a remote shard's frames are kept
    """

    def __init__(self, path: str, index: ShardIndex, held: FrameLRU[FrameText], cache: FrameCache | None = None):
        self.path, self.index, self.held = path, index, held
        self.cache = cache if is_url(path) else None
        self.lines = index.header.lines
        self._sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)
        self._counts = np.diff(index.frames.line, append=self.lines)
        self._file: BinaryIO | None = None

    def close(self) -> None:
        """Close what is open; it is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def line(self, number: int) -> Line:
        """This line, without its newline; 0 <= number < lines."""
        frame = int(np.searchsorted(self.index.frames.line, number, side="right")) - 1
        text = self.held.get((self.path, frame))
        first, at = int(self.index.frames.line[frame]), int(self.index.frames.line_at[frame])
        line = None if text is None else text.quick_line(number - first + (at > 0))
        return next(self.lines_of(np.array([number]), hold=True)) if line is None else line

    def lines_of(self, numbers: Int64, *, hold: bool = False) -> Iterator[Line]:
        """These lines, without their newlines; each frame is decoded once.

        numbers   int64 [lines], increasing, 0 <= number < lines
        hold      hold all frames; else not those of at most `SOON_DECODED`
        """
        # A frame in which no line begins has the number of the next line: of several, the last is where it does.
        of_each = np.searchsorted(self.index.frames.line, numbers, side="right") - 1
        borders = np.flatnonzero(np.diff(of_each, prepend=-1, append=len(self._sizes)))
        frames = of_each[borders[:-1]].tolist()
        stored: dict[int, memoryview] = {}
        for place, (begin, end) in enumerate(pairwise(borders.tolist())):
            frame, some = frames[place], numbers[begin:end]
            if self._sizes[frame] > HELD_BYTES:
                yield from self._read_through(frame, some)
                continue
            with located_errors(self.path, partial(int, some[0]), MAX_DOCUMENT_BYTES):
                if frame not in stored and self.held.get((self.path, frame)) is None:
                    stored = self._stored(frames[place:])
                found = self._lines_of_held(some, frame, stored.pop(frame, None), hold=hold)
            yield from found

    def _read_through(self, frame: int, numbers: Int64) -> Iterator[Line]:
        """These lines of a frame too long to hold, by going through it from its beginning."""
        at = int(self.index.frames.line_at[frame])
        first = int(self.index.frames.line[frame]) - (at > 0)  # The end of a line that began before counts too.

        def blocks(texts: Iterator[bytes]) -> Iterator[LineBlock]:
            for place, block in enumerate(whole_lines(texts, MAX_DOCUMENT_BYTES)):
                if at and not place and len(block.lines()[0]) + 1 != at:
                    raise self._misfit(f"other lines begin in frame {frame}")
                yield block

        found = 0
        with (
            located_errors(self.path, lambda: int(numbers[found]), MAX_DOCUMENT_BYTES),
            closing(self._texts(frame)) as texts,
        ):
            for _, lines in _picked(blocks(texts), numbers, first):
                yield from lines
                found += len(lines)
        if found < len(numbers):
            raise self._misfit(f"line {int(numbers[found]) + 1:,} is not where it should be")

    def _lines_of_held(self, numbers: Int64, frame: int, stored: memoryview | None, *, hold: bool) -> list[Line]:
        text = self._text(frame, stored, hold=hold)
        first, at = int(self.index.frames.line[frame]), int(self.index.frames.line_at[frame])
        counts = numbers - first + (at > 0)
        begins, ends = text.behind_newlines(counts)
        # A few lines are copied: views of them would keep all of their frames in memory.
        data = memoryview(text.data) if 2 * int((ends - begins).sum()) > len(text.data) else text.data
        lines: list[Line] = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        if counts[-1] == text.newlines:  # No newline follows, so the line may go on in the next frame.
            lines[-1] = self._going_on(text, int(begins[-1]), frame)
        return lines

    def _going_on(self, text: FrameText, begin: int, frame: int) -> Line:
        """The line that begins there in the text of this frame, and ends in a later one or with the shard."""
        with closing(self._texts(frame + 1)) as following:
            block = next(whole_lines(chain([text.data[begin:]], following), MAX_DOCUMENT_BYTES))
        assert block.head is not None
        return block.head

    def _stored(self, frames: list[int]) -> dict[int, memoryview]:
        """The stored bytes of the first of these frames, and of those that follow it directly, read at once.

        What lies between a frame and the next is taken for its own. None where there are no frames, and of one that is
        too large for that.
        """
        if self.index.header.storage == "gzip":
            return {}
        first, count = frames[0], 0
        while (
            count < len(frames) and frames[count] == first + count and self._span(first, first + count) <= READ_AT_ONCE
        ):
            count += 1
        stored: dict[int, memoryview] = {}
        if self.cache is not None:
            for frame in frames[:count]:
                kept = self.cache.get(self._key(frame), self._span(frame, frame))
                if kept is not None:
                    stored[frame] = memoryview(kept)
        missing = [frame for frame in frames[:count] if frame not in stored]
        breaks = np.flatnonzero(np.diff(missing, prepend=-2, append=-2) != 1).tolist()
        for some, behind in pairwise(breaks):
            file = self._opened()
            file.seek(self._begin(missing[some]))
            read = memoryview(file.read(self._span(missing[some], missing[behind - 1])))
            for frame in missing[some:behind]:
                at = self._begin(frame) - self._begin(missing[some])
                stored[frame] = read[at : at + self._span(frame, frame)]
        return stored

    def _begin(self, frame: int) -> int:
        """The stored byte at which a frame begins; of the one behind the last, where the file ends."""
        offsets = self.index.frames.offset
        return int(offsets[frame]) if frame < len(offsets) else self.index.header.size

    def _span(self, first: int, last: int) -> int:
        """How many stored bytes these frames and all between them take."""
        return self._begin(last + 1) - self._begin(first)

    def _key(self, frame: int) -> str:
        """What a frame is called in the cache."""
        header = self.index.header
        return f"{header.size} {header.sample} {header.content_hash} {self._begin(frame)} {self._begin(frame + 1)}"

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = open_stored(self.path, scattered=True)[0]
        return self._file

    def _text(self, frame: int, stored: memoryview | None = None, *, hold: bool = True) -> FrameText:
        """The text of a frame that can be held: decoded, unless it is held, and compared with the index."""
        text = self.held.get((self.path, frame))
        if text is None:
            stored = self._stored([frame]).get(frame) if stored is None else stored
            whole = None if stored is None else self._decoded(frame, stored)
            # What cannot be decoded at once tells what is wrong with it when it is decoded piece by piece.
            text = FrameText(self._pieces(self._opened(), frame) if whole is None else [whole])
            at, size = int(self.index.frames.line_at[frame]), len(text.data)
            # Whether a line begins at byte 0, only the frame before could tell.
            at_by_text = (text.data.find(b"\n") + 1 or size) if at else 0
            begun = text.newlines - text.data.endswith(b"\n") + (not at and size > 0)
            if (at, self._counts[frame]) != (at_by_text, begun):
                raise self._misfit(f"other lines begin in frame {frame}")
            if self.cache is not None and stored is not None and whole is not None:
                self.cache.used(self._key(frame), stored)
            if hold or whole is None or size > SOON_DECODED or self.held.whole:
                self.held.add((self.path, frame), text, size)
        return text

    def _decoded(self, frame: int, stored: memoryview) -> bytes | None:
        """The text of a frame from its stored bytes; None if they are not what they should be."""
        size = int(self._sizes[frame])
        if self.index.header.storage == "zstd":
            return decompress_whole(stored, size)
        return bytes(stored) if len(stored) == size else None

    def _texts(self, frame: int) -> Generator[bytes, None, None]:
        """The text from the beginning of a frame on: whole frames, but those too long to hold in pieces."""
        for following in range(frame, len(self._sizes)):
            if self._sizes[following] <= HELD_BYTES:
                yield self._text(following).data
                continue
            with open_stored(self.path)[0] as file:
                yield from self._pieces(file, following)

    def _pieces(self, file: BinaryIO, frame: int) -> Iterator[bytes]:
        """The text of one frame, which must have the size that the index tells."""
        storage, offset, left = self.index.header.storage, int(self.index.frames.offset[frame]), int(self._sizes[frame])
        file.seek(offset)
        if storage == "zstd":
            pieces: Iterator[bytes] = decompress_frame_at(file, offset, number=frame)
        elif storage == "gzip":
            pieces = gunzipped(CountedFile(file))
        else:
            pieces = iter(lambda: file.read(min(PIECE_BYTES, left)), b"")
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise self._misfit(f"frame {frame} has another size")

    def _misfit(self, why: str) -> PilekitError:
        return PilekitError(
            f"{visible(self.index.path)}: does not fit {visible(self.path)} ({why}); remove it and make a new one with "
            "`pilekit index`"
        )


class LinesInOrder:
    """The lines of a shard in order, each request by reading from the beginning; the path `-` is standard input.

    lines     how many it has; None: not known
    advance   called with each further amount of stored bytes read
    """

    def __init__(self, path: str, shown: str, lines: int | None = None, advance: Callable[[int], None] | None = None):
        self.path, self.shown, self.lines, self.advance = path, shown, lines, advance

    def close(self) -> None:
        """Nothing stays open."""

    def lines_of(self, numbers: Int64) -> Iterator[Line]:
        """These lines, without their newlines; `numbers` are int64 [lines] and increase."""
        read = found = 0
        with (
            located_errors(self.shown, lambda: read, MAX_DOCUMENT_BYTES),
            line_blocks(self.path, MAX_DOCUMENT_BYTES, advance=self.advance) as blocks,
        ):
            for passed, lines in _picked(blocks, numbers, 0):
                yield from lines
                read, found = passed, found + len(lines)
        if found < len(numbers) and self.lines is not None:
            raise PilekitError(
                f"{visible(self.shown)}: does not fit its index (it has {read:,} lines, not {self.lines:,}); make the "
                "index anew with `pilekit index`"
            )
        if found < len(numbers):
            raise no_such_number(self.shown, int(numbers[found]), read)


def _picked(blocks: Iterator[LineBlock], numbers: Int64, first: int) -> Iterator[tuple[int, list[Line]]]:
    """The number of the line behind each block, and its lines of these numbers, up to the last of them.

    first   the number of the first block's first line
    """
    begin = 0
    for block in blocks:
        lines = block.lines()
        end = int(np.searchsorted(numbers, first + len(lines)))
        yield first + len(lines), [lines[number - first] for number in numbers[begin:end].tolist()]
        first, begin = first + len(lines), end
        if begin == len(numbers):
            return


def no_such_number(path: str, number: int, lines: int) -> PilekitError:
    """What to say of a number that the shard does not have."""
    has = f"its {lines:,} lines have the numbers 0 to {lines - 1:,}" if lines else "it has no lines"
    return PilekitError(f"{visible(path)}: has no document {number:,}: {has}")
