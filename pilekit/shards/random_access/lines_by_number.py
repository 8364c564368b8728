"""Lines of a shard by their number, through its index: only the frames in which a line lies are decoded.

A frame is held, or gone through where it is too large for that (see held_frames.py), as the single frame of a released
shard is: asked in increasing order, such a shard is read once.

The index is believed only as far as decoding bears it out: a frame must have the size it tells, and as many lines,
beginning where it says.
"""

from __future__ import annotations

import logging
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
from pilekit.shards.random_access.frame_lru import HELD_BYTES, ForwardPass, FrameText, HeldFrames
from pilekit.shards.read.json_records import BadRecord, record_of
from pilekit.shards.read.lines import Line, whole_lines
from pilekit.shards.read.open import open_stored
from pilekit.shards.read.reader import MAX_DOCUMENT_BYTES, CountedFile, gunzipped, line_blocks, located_errors
from pilekit.shards.read.zstd_frames import PIECE_BYTES, decompress_frame_at, decompress_whole

logger = logging.getLogger(__name__)

SOON_DECODED = 2 << 20
"""Of frames decoded for many lines, those up to so many bytes are not held: who asks for many wants others next."""

READ_AT_ONCE = 8 << 20
"""So many stored bytes of neighbouring frames are read with one call, which is one request to a store."""

Int64 = npt.NDArray[np.int64]


class LinesByNumber:
    """The lines of one shard that is not Parquet; `lines` is how many it has.

    path      where the shard is
    index     where its frames lie
    held      where decoded frames are held
    advance   called with each further amount of stored bytes read in going through a frame
    cache     where the stored bytes of a remote shard's frames are kept
    """

    def __init__(
        self,
        path: str,
        index: ShardIndex,
        held: HeldFrames[FrameText],
        advance: Callable[[int], None] | None = None,
        cache: FrameCache | None = None,
    ):
        self.path, self.index, self.held, self.advance = path, index, held, advance
        self.cache = cache if is_url(path) else None
        self.lines = index.header.lines
        self._sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)
        self._counts = np.diff(index.frames.line, append=self.lines)
        self._file: BinaryIO | None = None
        self._pass: ForwardPass[list[Line]] | None = None
        self._passed = 0

    def close(self) -> None:
        """Close what is open; it is opened again when it is needed."""
        if self._pass is not None:
            self._pass.blocks.close()
        if self._file is not None:
            self._file.close()
        self._pass = self._file = None

    def is_near(self, number: int) -> bool:
        """Whether this line is reached without going through a frame; 0 <= number < lines."""
        return bool(self._sizes[self._frame_of(number)] <= HELD_BYTES)

    def record(self, number: int) -> object:
        """What this line decodes to; `BadRecord` if it is none, `PilekitError` if it cannot be read."""
        return _decoded(self._line(number))

    def lines_of(self, numbers: Int64) -> list[Line]:
        """These lines, without their newlines; each frame is decoded once.

        numbers   int64 [lines], increasing, 0 <= number < lines
        """
        found: list[Line] = []
        of_each = np.searchsorted(self.index.frames.line, numbers, side="right") - 1
        borders = np.flatnonzero(np.diff(of_each, prepend=-1, append=len(self._sizes)))
        frames = of_each[borders[:-1]].tolist()
        stored: dict[int, memoryview] = {}
        for place, (begin, end) in enumerate(pairwise(borders.tolist())):
            frame, some = frames[place], numbers[begin:end]
            if self._sizes[frame] > HELD_BYTES:
                found += map(self._line, some.tolist())
                continue
            with located_errors(self.path, partial(int, some[0]), MAX_DOCUMENT_BYTES):
                if frame not in stored and self.held.get((self.path, frame)) is None:
                    stored = self._stored(frames[place:])
                found += self._lines_of_held(some, frame, stored.pop(frame, None))
        return found

    def _lines_of_held(self, numbers: Int64, frame: int, stored: memoryview | None) -> list[Line]:
        text = self._text(frame, stored)
        first, at = int(self.index.frames.line[frame]), int(self.index.frames.line_at[frame])
        counts = numbers - first + (at > 0)
        begins, ends = text.behind_newlines(counts)
        # A few lines are copied: views of them would keep all of their frames in memory.
        data = memoryview(text.data) if 2 * int((ends - begins).sum()) > len(text.data) else text.data
        lines: list[Line] = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        if counts[-1] == text.newlines:  # No newline follows, so the line may go on in the next frame.
            lines[-1] = self._going_on(text, int(begins[-1]), frame)
        return lines

    def _line(self, number: int) -> Line:
        frame = self._frame_of(number)
        if self._sizes[frame] <= HELD_BYTES:
            with located_errors(self.path, lambda: number, MAX_DOCUMENT_BYTES):
                return self._line_of_held(number, frame)
        # A pass that fails is over.
        going, self._pass = self._pass, None
        if going is None or not going.leads_to(frame, number):
            if going is not None:
                going.blocks.close()
            going = ForwardPass(frame, int(self.index.frames.line[frame]), self._blocks(frame))
        with located_errors(self.path, lambda: going.read, MAX_DOCUMENT_BYTES):
            found = going.find(number)
        if found is None:
            raise self._misfit(f"line {number + 1:,} is not where it should be")
        self._pass = going
        lines, place = found
        return lines[place]

    def _frame_of(self, number: int) -> int:
        # A frame in which no line begins has the number of the next line: of several, the last is where it does.
        return int(np.searchsorted(self.index.frames.line, number, side="right")) - 1

    def _line_of_held(self, number: int, frame: int) -> Line:
        text = self._text(frame)
        first, at = int(self.index.frames.line[frame]), int(self.index.frames.line_at[frame])
        begin = text.behind_newline(number - first + (at > 0))
        end = text.data.find(b"\n", begin)
        return memoryview(text.data)[begin:end] if end >= 0 else self._going_on(text, begin, frame)

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

    def _text(self, frame: int, stored: memoryview | None = None) -> FrameText:
        """The text of a frame that can be held: decoded, unless it is held, and compared with the index."""
        text = self.held.get((self.path, frame))
        if text is None:
            one_of_many = stored is not None
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
            if not one_of_many or whole is None or size > SOON_DECODED or self.held.whole:
                self.held.add((self.path, frame), text, size)
        return text

    def _decoded(self, frame: int, stored: memoryview) -> bytes | None:
        """The text of a frame from its stored bytes; None if they are not what they should be."""
        size = int(self._sizes[frame])
        if self.index.header.storage == "zstd":
            return decompress_whole(stored, size)
        return bytes(stored) if len(stored) == size else None

    def _texts(self, frame: int) -> Generator[bytes, None, None]:
        """The text from the beginning of a frame on: whole frames, but those too large to hold in pieces."""
        for following in range(frame, len(self._sizes)):
            if self._sizes[following] <= HELD_BYTES:
                yield self._text(following).data
                continue
            with open_stored(self.path)[0] as file:
                told = int(self.index.frames.offset[following])
                for piece in self._pieces(file, following):
                    if self.advance is not None:
                        self.advance(file.tell() - told)
                        told = file.tell()
                    yield piece

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

    def _blocks(self, frame: int) -> Generator[list[Line], None, None]:
        """The lines that begin in this frame, and all further ones."""
        with closing(self._texts(frame)) as texts:
            for block in whole_lines(self._from_first_line(texts, frame), MAX_DOCUMENT_BYTES):
                self._count(len(block.data))
                yield block.lines()

    def _from_first_line(self, texts: Iterator[bytes], frame: int) -> Iterator[bytes]:
        before = int(self.index.frames.line_at[frame])
        for piece in texts:
            if 0 < before <= len(piece) and piece[before - 1 : before] != b"\n":
                raise self._misfit(f"other lines begin in frame {frame}")
            yield piece[before:]
            before = max(0, before - len(piece))

    def _count(self, amount: int) -> None:
        """Say, once, that going through frames takes time; where one long line makes a frame large, it does not."""
        before, self._passed = self._passed, self._passed + amount
        if before <= HELD_BYTES < self._passed:
            logger.warning(
                "%s: its frames are too large to hold, so a document is reached only through all text before it; "
                "`pilekit reframe` writes the same lines in frames of 1 MiB",
                visible(self.path),
            )

    def _misfit(self, why: str) -> PilekitError:
        return PilekitError(
            f"{visible(self.index.path)}: does not fit {visible(self.path)} ({why}); remove it and make a new one with "
            "`pilekit index`"
        )


class LinesFromTheBeginning:
    """The lines of a shard without an index, each by reading from the beginning; the path `-` is standard input."""

    lines = None

    def __init__(self, path: str, shown: str, advance: Callable[[int], None] | None = None):
        self.path, self.shown, self.advance = path, shown, advance

    def close(self) -> None:
        """Nothing stays open."""

    def is_near(self, number: int) -> bool:
        """None is."""
        return False

    def record(self, number: int) -> object:
        """What this line decodes to; `BadRecord` if it is none, `PilekitError` if it cannot be read."""
        read = 0
        with (
            located_errors(self.shown, lambda: read, MAX_DOCUMENT_BYTES),
            line_blocks(self.path, MAX_DOCUMENT_BYTES, advance=self.advance) as blocks,
        ):
            for block in blocks:
                lines = block.lines()
                if number < read + len(lines):
                    return _decoded(lines[number - read])
                read += len(lines)
        raise no_such_number(self.shown, number, read)


def _decoded(line: Line) -> object:
    if not bytes(line).strip():
        raise BadRecord("is blank")
    return record_of(line)


def no_such_number(path: str, number: int, lines: int) -> PilekitError:
    """What to say of a number that the shard does not have."""
    has = f"its {lines:,} lines have the numbers 0 to {lines - 1:,}" if lines else "it has no lines"
    return PilekitError(f"{visible(path)}: has no document {number:,}: {has}")
