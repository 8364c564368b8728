"""zstd frames: decompress every frame of a file, and know that each frame is complete.

python-zstandard stops quietly at a truncated frame, and by default after the first of several frames. Both lose text
without an error. So this module walks the frame format (RFC 8878, section 3.1): a frame is a header, blocks with 3-byte
headers, and an optional checksum. The walk costs one small step per block (128 KiB of text) and gives three guarantees:

* the end of every frame is known, so a truncated file is recognised;
* a block decodes to at most 128 KiB, so a bounded number of blocks gives a bounded output: a hostile file (zeros
  compress 32,000:1) cannot make one small read return gigabytes;
* the window that a frame needs is known before the decoder allocates it.

zstd itself decodes the blocks and verifies the checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import zstandard

from pilekit.shards.read.read_errors import ShardDamage

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
READ_BYTES = 1 << 20
LARGEST_HEADER = 18
LARGEST_BLOCK = 128 << 10
PIECE_BYTES = 16 * LARGEST_BLOCK
"""The most text that is decoded at a time: 2 MiB."""
MAX_WINDOW = 128 << 20
"""The largest window that is accepted by default."""


def is_skippable(magic: bytes) -> bool:
    """Whether four bytes start a skippable frame (user data, such as a seek table)."""
    return len(magic) == 4 and _may_be_skippable(magic)


def _may_be_skippable(magic: bytes) -> bool:
    return 0x50 <= magic[0] <= 0x5F and b"\x2a\x4d\x18".startswith(magic[1:])


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of one zstd frame: its own length and the window it needs, in bytes.

    dictionary   the id of the dictionary that the frame was compressed with; 0 if there is none
    """

    length: int
    window: int
    checksum: bool
    dictionary: int


def parse_frame_header(data: bytes) -> FrameHeader | None:
    """The frame header at the start of `data`, magic included; None if `data` is too short."""
    if len(data) < 6:
        return None
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    length = 5 + (not single_segment) + dictionary_bytes + size_bytes
    if len(data) < length:
        return None
    if single_segment:
        # The window is the whole content. A 2-byte size is stored minus 256.
        window = int.from_bytes(data[length - size_bytes : length], "little") + (256 if size_bytes == 2 else 0)
    else:
        base = 1 << (10 + (data[5] >> 3))
        window = base + (base >> 3) * (data[5] & 7)
    dictionary = int.from_bytes(data[length - size_bytes - dictionary_bytes : length - size_bytes], "little")
    return FrameHeader(length, window, bool(descriptor & 4), dictionary)


class Stored:
    """The stored bytes, read in pieces of 1 MiB; `data[at:]` is not used yet."""

    def __init__(self, file: BinaryIO, start: int = 0):
        self.file, self.start = file, start
        self.data, self.at = b"", 0

    @property
    def position(self) -> int:
        """The offset in the file of `data[at]`."""
        return self.start + self.at

    @property
    def left(self) -> int:
        """How many bytes were read but not used yet."""
        return len(self.data) - self.at

    def more(self) -> bool:
        """Read another piece; False at the end of the file."""
        piece = self.file.read(READ_BYTES)
        if not piece:
            return False
        self.start += self.at
        self.data = self.data[self.at :] + piece
        self.at = 0
        return True

    def has(self, amount: int) -> bool:
        """Whether `amount` more bytes exist; reads as needed."""
        while self.left < amount:
            if not self.more():
                return False
        return True


def decompress_frames(
    file: BinaryIO, *, max_window: int = MAX_WINDOW, on_frame: Callable[[int, int], None] | None = None
) -> Iterator[bytes]:
    """Decompress all frames of `file`; yields pieces of at most 2 MiB.

    max_window   the largest window accepted, in bytes
    on_frame     is called with the number and the first byte of each frame, before its pieces are yielded

    Raises `ShardDamage` for anything that is not a sequence of complete frames, after all pieces before the damage.
    """
    for blocks in walk_frames(Stored(file), max_window):
        if on_frame is not None:
            on_frame(blocks.number, blocks.first)
        yield from decode(blocks, max_window)


def decompress_frame_at(
    file: BinaryIO, offset: int, *, number: int, max_window: int = MAX_WINDOW
) -> Generator[bytes, None, None]:
    """Decompress the one frame that begins at byte `offset`; messages give it the number `number`."""
    file.seek(offset)
    stored = Stored(file, offset)
    stored.has(LARGEST_HEADER)
    if stored.data[:4] != FRAME_MAGIC:
        raise ShardDamage(
            "no frame begins where one should; verify the file, or index it again", frame=number, byte=offset
        )
    yield from decode(_begin_frame(stored, number, max_window), max_window)


def stored_frame(file: BinaryIO, offset: int) -> bytes:
    """The stored bytes of the frame at byte `offset`, which was decoded before; raises `ShardDamage` if it changed."""
    file.seek(offset)
    stored = Stored(file, offset)
    stored.has(LARGEST_HEADER)
    blocks = _begin_frame(stored, 0, MAX_WINDOW)
    frame = b"".join(iter(blocks.read, b""))
    if blocks.damage is not None:
        raise blocks.damage
    return frame


def decompress_whole(data: memoryview, size: int, max_window: int = MAX_WINDOW) -> bytes | None:
    """Decompress the first frame of `data`, if it is complete and its text has `size` bytes.

    None if not: `decompress_frame_at` then reports the reason. Bytes after the frame are ignored.
    """
    header = parse_frame_header(bytes(data[:LARGEST_HEADER]))
    if header is None or data[:4] != FRAME_MAGIC or header.window > max_window:
        return None
    try:
        # zstd allocates the size that the frame claims.
        if zstandard.frame_content_size(data) not in (-1, size):
            return None
        text = zstandard.ZstdDecompressor(max_window_size=max_window).decompress(data, max_output_size=size)
    except zstandard.ZstdError:
        return None
    return text if len(text) == size else None


def walk_frames(stored: Stored, max_window: int) -> Iterator[Blocks]:
    """The frames of a file, for `decode`. Read each frame to its last block before you ask for the next."""
    if not stored.has(1):
        raise ShardDamage("is empty (0 bytes), not a zstd file; fetch it again", frame=None, byte=0)
    number = 0
    while stored.has(1):
        begin = stored.position
        stored.has(LARGEST_HEADER)
        magic = stored.data[stored.at : stored.at + 4]
        if is_skippable(magic):
            _skip(stored, number)
        elif magic == FRAME_MAGIC:
            yield _begin_frame(stored, number, max_window)
            number += 1
        elif len(magic) < 4 and (FRAME_MAGIC.startswith(magic) or _may_be_skippable(magic)):
            raise _truncation(stored, number)
        elif number == 0 and begin == 0:
            raise ShardDamage("is not a zstd file; fetch it again", frame=0, byte=0)
        else:
            raise ShardDamage(
                f"what follows frame {number - 1} is not a zstd frame (garbage, or a file damaged in copying); "
                "fetch it again",
                frame=number,
                byte=begin,
            )


def _skip(stored: Stored, number: int) -> None:
    if not stored.has(8):
        raise _truncation(stored, number)
    (remaining,) = struct.unpack_from("<I", stored.data, stored.at + 4)
    stored.at += 8
    while remaining:
        if not stored.has(1):
            raise _truncation(stored, number)
        step = min(remaining, stored.left)
        stored.at += step
        remaining -= step


def _begin_frame(stored: Stored, number: int, max_window: int) -> Blocks:
    header = parse_frame_header(stored.data[stored.at : stored.at + LARGEST_HEADER])
    if header is None:
        raise _truncation(stored, number)
    if header.dictionary:
        raise ShardDamage(
            f"frame {number} says that it needs a dictionary, which a shard does not hold; recompress it without one "
            "(zstd -dc -D DICTIONARY FILE | zstd -o NEW), or fetch it again if it is damaged",
            frame=number,
            byte=stored.position,
        )
    if header.window > max_window:
        raise ShardDamage(
            f"frame {number} needs a window of {header.window / 2**20:,.0f} MiB, and {max_window / 2**20:,.0f} MiB are "
            "allowed; recompress it (zstd -dc --long=31 FILE | zstd -o NEW) or, if you trust it, raise max_window of "
            "`pilekit.read`",
            frame=number,
            byte=stored.position,
        )
    return Blocks(stored, header, number)


def decode(blocks: Blocks, max_window: int) -> Iterator[bytes]:
    """Decompress one frame; yields pieces of at most 2 MiB, then raises `ShardDamage` if it is damaged."""
    # `stream_reader.read` decodes directly into the bytes that it returns. `decompressobj` would copy each piece again
    # and hold the GIL, for which the parsing thread waits.
    decoder = zstandard.ZstdDecompressor(max_window_size=max_window).stream_reader(
        cast(BinaryIO, blocks), read_size=READ_BYTES
    )
    while True:
        try:
            piece = decoder.read(PIECE_BYTES)
        except zstandard.ZstdError as error:
            why = str(error).removeprefix("zstd decompress error: ")
            if "not enough memory" in why:  # The frame may be right, and must not be called damaged.
                raise MemoryError from error
            raise _frame_damage(blocks.number, why, blocks.first, blocks.position) from error
        if piece:
            yield piece
        elif blocks.damage is not None:
            raise blocks.damage
        elif not blocks.last or blocks.read(1):
            raise _frame_damage(blocks.number, "its blocks and its end disagree", blocks.first, blocks.position)
        else:
            return


class Blocks:
    """The header and blocks of one frame, as a file that zstd reads: whole blocks only, and nothing after the last.

    first      the frame's first byte in the file
    position   the byte of the file after the bytes that were read
    last       whether the last block has been read
    damage     why there is no further block; raised after everything decoded before it has been yielded
    """

    def __init__(self, stored: Stored, header: FrameHeader, number: int):
        self.stored, self.header, self.number = stored, header, number
        self.first = self.position = stored.position
        self.last = False
        self.damage: ShardDamage | None = None
        self.walked = header.length  # bytes at stored.at that are known to be whole

    def read(self, size: int = -1) -> bytes | memoryview:
        """The header or some whole blocks, at most 1 MiB or one block, not copied; b"" after the last block."""
        while not self.last and self.damage is None:
            data, begin = self.stored.data, self.stored.at
            end = begin + self.walked
            while not self.last and end + 3 <= len(data):
                field = data[end] | data[end + 1] << 8 | data[end + 2] << 16
                kind, length = (field >> 1) & 3, field >> 3
                if kind == 3 or length > LARGEST_BLOCK:
                    self.damage = _frame_damage(
                        self.number, "an impossible block header", self.first, self.stored.start + end + 3
                    )
                    break
                last = bool(field & 1)
                whole = end + 3 + (1 if kind == 1 else length) + (4 if last and self.header.checksum else 0)
                if whole > len(data):
                    break
                end, self.last = whole, last
            if end > begin:
                self.walked = 0
                self.stored.at = end
                self.position += end - begin
                return memoryview(data)[begin:end]
            if self.damage is None:
                try:
                    if not self.stored.more():
                        self.damage = _truncation(self.stored, self.number)
                except ShardDamage as unreadable:
                    self.damage = unreadable
        return b""


def _truncation(stored: Stored, number: int) -> ShardDamage:
    return ShardDamage(
        f"is cut off: frame {number} has no end; fetch it again", frame=number, byte=stored.start + len(stored.data)
    )


def _frame_damage(number: int, why: str, begin: int, end: int) -> ShardDamage:
    return ShardDamage(f"frame {number} is damaged ({why}); fetch it again", frame=number, byte=end, since=begin)
