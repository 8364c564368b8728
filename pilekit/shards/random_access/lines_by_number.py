"""Lines of a shard by their number: from the frames that the index names, or in order from the beginning.

A frame is decoded whole, compared with its entry in the index, and cut into lines. The decoded frame must have the size
and the number of lines that the index gives, and its first line must begin where the index says. A shard without an
index, or with frames too long for memory (as released), is read from its beginning up to the last requested line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shard import is_url
from pilekit.errors import PilekitError, counted
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.frame_cache import BYTES_PER_LINE, FrameCache, FrameLRU
from pilekit.shards.read.blocks import gunzip, locate_errors, shard_blocks
from pilekit.shards.read.lines import Line, RowBlock, numbered_parts
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES, ReadOptions, open_stored
from pilekit.shards.read.read_errors import LineTooLong
from pilekit.shards.read.zstd_frames import decompress_frame_at, decompress_whole

SMALL_FRAME = 2 << 20
"""Frames up to this size, decoded for many lines at once, are not held: the next request needs other frames."""

READ_AT_ONCE = 8 << 20

Int64 = npt.NDArray[np.int64]


class FrameText(NamedTuple):
    """The decoded text of one frame.

    data     the text
    begins   int64 [lines + 1]: where the frame's lines begin, then the byte after the last newline; if the last line
             ends in a later frame, the size of the data plus one instead
    """

    data: bytes
    begins: Int64


class LinesByNumber:
    """The lines of one shard that is not Parquet and has an index.

    lines   how many lines the shard has
    frames  holds the decoded frames
    cache   keeps the stored bytes of a remote shard's frames

    `read_at_once` bounds the stored bytes of neighbouring frames that are read with one call (one request to a store).
    """

    def __init__(self, path: str, index: ShardIndex, frames: FrameLRU, cache: FrameCache | None = None):
        self.path, self.index, self.frames = path, index, frames
        self.cache = cache if is_url(path) else None
        self.read_at_once, self.max_document_bytes = READ_AT_ONCE, MAX_DOCUMENT_BYTES
        self.lines = index.header.lines
        self._sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)
        self._first = np.append(index.frames.line, self.lines)
        # Bytes between two frames count as part of the frame before.
        self._offsets = np.append(index.frames.offset, index.header.size)
        self._file: BinaryIO | None = None

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def line(self, number: int) -> Line:
        """This line, without its newline; 0 <= number < lines. Its frame is held."""
        frame = self.index.frames.frame_of(number)
        text: FrameText | None = self.frames.get((self.path, frame))
        if text is None:
            with locate_errors(self.path, lambda: number):
                text = self._text(frame)
        place = number - int(self._first[frame])
        begin, end = text.begins[place : place + 2].tolist()
        if end <= len(text.data):
            return text.data[begin : end - 1]
        with locate_errors(self.path, lambda: number, self.max_document_bytes):
            return self._with_rest(text.data[begin:], frame)

    def lines_of(self, numbers: Int64) -> Iterator[Line]:
        """These lines, without their newlines; each frame is decoded once, and small frames are not held.

        numbers   int64 [lines], increasing, 0 <= number < lines
        """
        # A frame in which no line begins has the number of the next line, so the search takes the last of equal
        # numbers.
        of_each = np.searchsorted(self.index.frames.line, numbers, side="right") - 1
        # A border lies where the frame changes, and at both ends.
        borders = np.flatnonzero(np.diff(of_each, prepend=-1, append=len(self._sizes))).tolist()
        frames = of_each[borders[:-1]].tolist()
        stored: dict[int, memoryview] = {}
        for place, (begin, end) in enumerate(pairwise(borders)):
            frame = frames[place]
            with locate_errors(self.path, partial(int, numbers[begin]), self.max_document_bytes):
                if frame not in stored and self.frames.get((self.path, frame)) is None:
                    stored = self._read(frames[place:])
                text = self._text(frame, stored.pop(frame, None), hold=False)
                lines = self._lines(frame, text, numbers[begin:end] - self._first[frame])
            yield from lines

    def _lines(self, frame: int, text: FrameText, places: Int64) -> list[Line]:
        """The lines at these places among those that begin in the frame."""
        begins, ends = text.begins[places], text.begins[places + 1] - 1
        # A few lines are copied: views of them would keep their whole frame in memory.
        data = memoryview(text.data) if 2 * int((ends - begins).sum()) > len(text.data) else text.data
        lines: list[Line] = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        if ends[-1] == len(text.data):  # No newline follows in this frame.
            lines[-1] = self._with_rest(bytes(lines[-1]), frame)
        return lines

    def _with_rest(self, begun: bytes, frame: int) -> bytes:
        """The line that begins with `begun` at the end of this frame, completed from later frames."""
        parts, size = [begun], len(begun)
        for following in range(frame + 1, len(self._sizes)):
            data = self._text(following).data
            end = data.find(b"\n")
            parts.append(data if end < 0 else data[:end])
            size += len(parts[-1])
            if size > self.max_document_bytes:
                raise LineTooLong(0)
            if end >= 0:
                break
        return b"".join(parts)

    def _text(self, frame: int, stored: memoryview | None = None, *, hold: bool = True) -> FrameText:
        """The text of a frame: from memory, or decoded and compared with the index."""
        text: FrameText | None = self.frames.get((self.path, frame))
        if text is not None:
            return text
        stored = self._read([frame]).get(frame) if stored is None else stored
        whole = None if stored is None else self._decode_stored(frame, stored)
        data = self._decode_pieces(frame) if whole is None else whole
        text = FrameText(data, self._begins(frame, data))
        if self.cache is not None and stored is not None and whole is not None:
            self.cache.used(self._key(frame), stored)
        if hold or len(data) > SMALL_FRAME or self.frames.whole:
            self.frames.add((self.path, frame), text, len(data) + BYTES_PER_LINE * len(text.begins))
        return text

    def _begins(self, frame: int, data: bytes) -> Int64:
        """Where the frame's lines begin; `PilekitError` if the index says otherwise."""
        at, lines = int(self.index.frames.line_at[frame]), int(self._first[frame + 1] - self._first[frame])
        newlines = after_newlines(data, lines + 1)
        if newlines is not None:
            first = at == 0  # a line begins with the frame
            last = int(newlines[-1]) if len(newlines) else 0 if first else -1
            begins = np.empty(first + len(newlines) + (last != len(data)), np.int64)
            begins[:1], begins[-1:] = 0, len(data) + 1
            begins[first : first + len(newlines)] = newlines
            if len(begins) == lines + 1 and min(int(begins[0]), len(data)) == at:
                return begins
        raise self._misfit(f"other lines begin in frame {frame}")

    def _read(self, frames: list[int]) -> dict[int, memoryview]:
        """The stored bytes of the first of these frames, and of neighbours that follow it, read at once.

        Empty for gzip, which cannot be decoded from the middle.
        """
        if self.index.header.storage == "gzip":
            return {}
        first = end = frames[0]
        for frame in frames:
            if frame != end or (end > first and self._offsets[end + 1] - self._offsets[first] > self.read_at_once):
                break
            if self.cache is not None:
                cached = self.cache.get(self._key(frame), int(self._offsets[frame + 1] - self._offsets[frame]))
                if cached is not None and frame == first:
                    return {frame: memoryview(cached)}
                if cached is not None:
                    break
            end += 1
        file = self._open()
        file.seek(int(self._offsets[first]))
        read = memoryview(file.read(int(self._offsets[end] - self._offsets[first])))
        places = (self._offsets[first : end + 1] - self._offsets[first]).tolist()
        return {first + i: read[begin:behind] for i, (begin, behind) in enumerate(pairwise(places))}

    def _key(self, frame: int) -> str:
        """The frame's name in the cache."""
        header, (begin, end) = self.index.header, self._offsets[frame : frame + 2].tolist()
        return f"{header.size} {header.sample} {header.content_hash} {begin} {end}"

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._file = open_stored(self.path, scattered=True)[0]
        return self._file

    def _decode_stored(self, frame: int, stored: memoryview) -> bytes | None:
        """The text of a frame from its stored bytes; None if they are damaged or have another size."""
        if self.index.header.storage == "zstd":
            return decompress_whole(stored, int(self._sizes[frame]))
        return bytes(stored) if len(stored) == self._sizes[frame] else None

    def _decode_pieces(self, frame: int) -> bytes:
        """The text of a frame, decoded in pieces: for gzip, and for a damaged frame, to name the damage."""
        pieces: Iterator[bytes] = iter(())
        if self.index.header.storage == "zstd":
            pieces = decompress_frame_at(self._open(), int(self._offsets[frame]), number=frame)
        elif self.index.header.storage == "gzip":
            self._open().seek(0)
            pieces = gunzip(self._open())
        texts, missing = [], int(self._sizes[frame])
        for piece in pieces:
            missing -= len(piece)
            if missing < 0:
                break
            texts.append(piece)
        if missing:
            raise self._misfit(f"frame {frame} has another size")
        return b"".join(texts)

    def _misfit(self, why: str) -> PilekitError:
        return PilekitError(
            f"{self.index.path}: does not fit {self.path} ({why}); remove it and make a new one with `pilekit index`"
        )


class LinesInOrder:
    """The lines of a shard; each request reads from the beginning. The path `-` is standard input.

    lines     how many lines the shard has; None: not known
    advance   is called with the number of further stored bytes read
    """

    def __init__(self, path: str, shown: str, lines: int | None = None, advance: Callable[[int], None] | None = None):
        self.path, self.shown, self.lines, self.advance = path, shown, lines, advance

    def close(self) -> None:
        """Nothing stays open."""

    def lines_of(self, numbers: Int64) -> Iterator[Line]:
        """These lines, without their newlines; `numbers` are int64 [lines] and increase."""
        read = begin = 0
        with shard_blocks(self.path, ReadOptions(self.advance), shown=self.shown) as blocks:
            for part in numbered_parts(blocks):
                assert not isinstance(part, RowBlock)
                here, lines, read = part
                del part
                end = int(np.searchsorted(numbers, read))
                block_numbers = numbers[begin:end]
                places = np.searchsorted(here, block_numbers).tolist()
                there = here.tolist()
                yield from [
                    lines[place] if place < len(there) and there[place] == number else b""  # else the line is blank
                    for place, number in zip(places, block_numbers.tolist(), strict=True)
                ]
                del lines  # A long line must not be held while the next is read.
                begin = end
                if begin == len(numbers):
                    return
        if begin < len(numbers) and self.lines is not None:
            raise PilekitError(
                f"{self.shown}: does not fit its index (it has {counted(read, 'line')}, not {self.lines:,}); "
                "make the index again with `pilekit index`"
            )
        if begin < len(numbers):
            raise no_such_number(self.shown, int(numbers[begin]), read)


def after_newlines(data: bytes, most: int) -> Int64 | None:
    """The place after each newline, int64; None for more than `most` newlines, whose places could fill the memory."""
    if most << 10 > len(data):
        newline = np.frombuffer(data, dtype=np.uint8) == ord("\n")
        return np.flatnonzero(newline) + 1 if np.count_nonzero(newline) <= most else None
    places: list[int] = []
    place = 0  # Of lines of a kilobyte and more, single searches take a third of the time.
    while len(places) <= most and (place := data.find(b"\n", place) + 1):
        places.append(place)
    return np.array(places, np.int64) if len(places) <= most else None


def no_such_number(path: str, number: int, lines: int) -> PilekitError:
    """The error for a number that the shard does not have."""
    has = f"its numbers go from 0 to {lines - 1:,}" if lines else "it has no lines"
    return PilekitError(f"{path}: has no document {number:,}: {has}")
