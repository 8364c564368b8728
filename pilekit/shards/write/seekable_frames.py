"""Text as seekable zstd frames: the frames, each with its checksum and size, and the seek table after the last one.

Frames of 1 MiB make a shard 0.4 to 2.4 % larger than one long frame, at level 3. Frames are independent, so several
threads compress at once (zstd releases the GIL) and the result does not depend on the number of threads.

The seek table is that of the zstd seekable format (facebook/zstd, contrib/seekable_format, version 0.1.0): a skippable
frame at the end of a file, with the stored and the decoded size of each frame, then a footer. Decoders that do not know
it skip it, so the file stays an ordinary `.zst`; tools that know it can seek to any frame.

A table is accepted only if it agrees with itself and with the file: header and footer must give the same length, and
the listed frames must end exactly where the table begins. The footer gives the position of the header, so one wrong
byte in either is an error: the file does not pass as one without a table.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import zstandard

from pilekit.errors import PilekitError
from pilekit.shards.read.read_errors import ShardDamage
from pilekit.workers.in_threads import map_in_threads

SKIPPABLE_MAGIC = 0x184D2A5E
SEEKABLE_MAGIC = 0x8F92EAB1
MAX_FRAME_BYTES = 1 << 30
"""The largest decoded frame the format allows."""
MAX_FRAMES = 1 << 21
"""The most frames read from a table. More would take over 300 MB of memory; at 1 MiB each, these hold 2 TiB."""

_HEADER = struct.Struct("<II")
_ENTRY = struct.Struct("<II")
_CHECKED_ENTRY = struct.Struct("<II4x")
_FOOTER = struct.Struct("<IBI")
_CHECKSUM_FLAG = 0x80
_RESERVED_BITS = 0x7C
_SMALLEST_FRAME = 8  # a skippable one without content


def seek_table(frames: Sequence[tuple[int, int]]) -> bytes:
    """The skippable frame for `frames`: (stored bytes, decoded bytes) of each, in order.

    Entries carry no checksums of their own (descriptor 0): every frame ends with one.
    """
    entries = b"".join(_ENTRY.pack(stored, decoded) for stored, decoded in frames)
    footer = _FOOTER.pack(len(frames), 0, SEEKABLE_MAGIC)
    return _HEADER.pack(SKIPPABLE_MAGIC, len(entries) + len(footer)) + entries + footer


def read_seek_table(file: BinaryIO, size: int) -> list[tuple[int, int]] | None:
    """The table at the end of a seekable `file` of `size` bytes; None if there is no table.

    Returns (stored bytes, decoded bytes) of every frame before the table, in order, including skippable frames with 0
    decoded bytes. Raises `ShardDamage` for a table that disagrees with itself or with the file's size.
    """
    if size < _HEADER.size + _FOOTER.size:
        return None
    number, descriptor, magic = _FOOTER.unpack(_read(file, size - _FOOTER.size, _FOOTER.size))
    entry = _CHECKED_ENTRY if descriptor & _CHECKSUM_FLAG else _ENTRY
    content = number * entry.size + _FOOTER.size
    begin = size - content - _HEADER.size
    header = _HEADER.unpack(_read(file, begin, _HEADER.size)) if begin >= 0 else None
    if magic != SEEKABLE_MAGIC and header != (SKIPPABLE_MAGIC, content):
        return None
    if magic != SEEKABLE_MAGIC or header != (SKIPPABLE_MAGIC, content):
        # If half of the header is right, the other half is damaged; else the footer is.
        wrong_header = header is not None and (header[0] == SKIPPABLE_MAGIC or header[1] == content)
        wrong = begin if wrong_header and magic == SEEKABLE_MAGIC else size - _FOOTER.size
        raise _table_damage("its header and footer disagree", wrong)
    if descriptor & _RESERVED_BITS:
        raise _table_damage(f"descriptor {descriptor:#04x}, which no known version has", size - 5)
    if number > MAX_FRAMES:
        raise ShardDamage(
            f"has a seek table of {number:,} frames, and {MAX_FRAMES:,} are allowed; write larger frames with "
            "pilekit reframe",
            frame=None,
            byte=begin,
        )
    frames = list(entry.iter_unpack(_read(file, begin + _HEADER.size, number * entry.size)))
    if any(stored < _SMALLEST_FRAME for stored, _ in frames) or sum(stored for stored, _ in frames) != begin:
        raise _table_damage(f"its frames do not add up to the {begin:,} bytes before it", begin)
    return frames


def _read(file: BinaryIO, offset: int, amount: int) -> bytes:
    file.seek(offset)
    data = file.read(amount)
    if len(data) != amount:
        raise ShardDamage("became shorter while it was read; try again", frame=None, byte=offset + len(data))
    return data


def _table_damage(why: str, byte: int) -> ShardDamage:
    reason = f"has a wrong seek table ({why}); fetch the file again, or write it again with pilekit reframe"
    return ShardDamage(reason, frame=None, byte=byte)


FRAME_BYTES = 1 << 20


class StoredFrame(NamedTuple):
    """A text and the frame that stores it already, with its checksum and its size."""

    text: bytes
    frame: bytes


class FrameWriter:
    """Writes pieces of text as checksummed frames, in order, and a seek table after them.

    file         the output
    level        zstd compression level
    most_bytes   decoded bytes of a frame: a longer text becomes several frames
    most_frames  more frames are an error

    The bytes depend only on the pieces and the level. `frames` lists (stored bytes, decoded bytes) of each frame.
    """

    def __init__(self, file: BinaryIO, level: int, *, most_bytes: int = MAX_FRAME_BYTES, most_frames: int = MAX_FRAMES):
        self.file, self.level = file, level
        self._most_bytes, self._most_frames = most_bytes, most_frames
        self.frames: list[tuple[int, int]] = []
        self._thread = threading.local()

    def write(self, text: bytes | memoryview) -> None:
        """Write one frame, or several if the text is larger than the format allows in one."""
        self._store(self._compress(text))

    def write_all(
        self, texts: Iterable[bytes | memoryview | StoredFrame], threads: int
    ) -> Iterator[bytes | memoryview]:
        """Write all texts, then the seek table; yields each text when it is written. Several threads compress."""
        threads = threads if threads > 1 else 0
        for text, frames in map_in_threads(self._compress, texts, threads, size_of=lambda text: 0, rounds=2):
            self._store(frames)
            yield text.text if isinstance(text, StoredFrame) else text
        self.finish()

    def finish(self) -> None:
        """Write the seek table. An empty text is one empty frame: 0 bytes are no zstd file."""
        if not self.frames:
            self.write(b"")
        self.file.write(seek_table(self.frames))

    def _store(self, frames: list[tuple[bytes, int]]) -> None:
        for frame, decoded in frames:
            if len(self.frames) == self._most_frames:
                raise PilekitError(f"comes to more than {self._most_frames:,} frames; make them larger (--frame)")
            self.file.write(frame)
            self.frames.append((len(frame), decoded))

    def _compress(self, text: bytes | memoryview | StoredFrame) -> list[tuple[bytes, int]]:
        """(the frame, its decoded bytes) for each part that the format allows in one frame."""
        if isinstance(text, StoredFrame):
            return [(text.frame, len(text.text))]
        if not hasattr(self._thread, "compressor"):
            self._thread.compressor = zstandard.ZstdCompressor(
                level=self.level, write_checksum=True, write_content_size=True
            )
        begins = range(0, max(1, len(text)), self._most_bytes)
        parts = [text[begin : begin + self._most_bytes] for begin in begins]
        return [(self._thread.compressor.compress(part), len(part)) for part in parts]
