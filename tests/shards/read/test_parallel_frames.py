"""Several threads give what one gives: the same text, and of damage the same words after the same text."""

from __future__ import annotations

import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.parallel_frames import decompress_in_threads
from pilekit.shards.read.zstd_frames import decompress_frames
from tests.shards.making import some_lines, zstd_frame
from tests.shards.reading import value_and_memory

MAX_WINDOW = 128 << 20
SKIPPABLE = b"\x5e\x2a\x4d\x18\x05\x00\x00\x00hello"


def read(pieces: object) -> tuple[bytes, str]:
    """All text, and what was said of the damage that ended it."""
    text = b""
    try:
        for piece in pieces:  # type: ignore[attr-defined]
            text += piece
    except ShardDamage as damage:
        return text, damage.describe("x", text.count(b"\n"))
    return text, ""


def serially(data: bytes, max_window: int = MAX_WINDOW) -> tuple[bytes, str]:
    return read(decompress_frames(io.BytesIO(data), max_window=max_window))


def in_threads(data: bytes, threads: int = 2, max_window: int = MAX_WINDOW) -> tuple[bytes, str]:
    with ThreadPoolExecutor(threads) as executor:
        return read(decompress_in_threads(io.BytesIO(data), max_window, executor=executor, most=2 * threads))


def sized_frame(text: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(text)


frames = st.one_of(
    st.binary(max_size=300).map(sized_frame),
    st.binary(max_size=300).map(zstd_frame),
    st.integers(1, 3).map(lambda blocks: sized_frame(bytes(blocks * 200_000))),
    st.just(SKIPPABLE),
)


@given(st.lists(frames, max_size=12), st.integers(1, 4), st.data())
def test_any_frames_whole_and_damaged(some: list[bytes], threads: int, data: st.DataObject) -> None:
    stored = b"".join(some)
    assert in_threads(stored, threads) == serially(stored)
    if stored:
        cut = data.draw(st.integers(0, len(stored) - 1))
        assert in_threads(stored[:cut], threads) == serially(stored[:cut])
        flipped = stored[:cut] + bytes([stored[cut] ^ 1 << data.draw(st.integers(0, 7))]) + stored[cut + 1 :]
        assert in_threads(flipped, threads) == serially(flipped)


@pytest.fixture(scope="module")
def mixed() -> bytes:
    """Short and long frames, with and without sizes and checksums, larger than what is read at a time."""
    text = b"\n".join(some_lines(60_000))
    made, begin = [], 0
    for number, size in enumerate([10_000, 3_000_000, 0, 1 << 20, 11_000_000, 1 << 20, 1 << 20, 20, 2_000_000]):
        part = text[begin : begin + size]
        made.append((sized_frame, zstd_frame)[number % 2](part))
        begin += size
    assert begin < len(text)
    return SKIPPABLE.join(made)


def test_short_and_long_frames_mixed(mixed: bytes) -> None:
    expected = serially(mixed)
    assert len(expected[0]) > 19_000_000
    for threads in (1, 2, 4):
        assert in_threads(mixed, threads) == expected


def test_damage_anywhere_is_told_as_by_one_thread(mixed: bytes) -> None:
    chosen = random.Random(7)
    for place in (chosen.randrange(len(mixed)) for _ in range(12)):
        cut = mixed[:place]
        assert in_threads(cut) == serially(cut)
        flipped = cut + bytes([mixed[place] ^ 0x10]) + mixed[place + 1 :]
        assert in_threads(flipped) == serially(flipped)


def test_a_window_too_large_is_refused_in_its_turn(mixed: bytes) -> None:
    assert in_threads(mixed, max_window=1 << 20) == serially(mixed, max_window=1 << 20)
    assert "window" in in_threads(mixed, max_window=1 << 20)[1]


def test_frames_are_decoded_at_the_same_time() -> None:
    """With two threads, two frames are being decoded at one moment: each waits for the other."""
    both = threading.Barrier(2, timeout=60)

    class Meeting(ThreadPoolExecutor):
        def submit(self, function, /, *arguments):  # type: ignore[no-untyped-def]
            def meet():  # type: ignore[no-untyped-def]
                both.wait()
                return function(*arguments)

            return super().submit(meet)

    data = sized_frame(bytes(1 << 20)) * 8
    with Meeting(2) as executor:
        pieces = decompress_in_threads(io.BytesIO(data), MAX_WINDOW, executor=executor, most=4)
        assert sum(map(len, pieces)) == 8 << 20


class Endless(io.RawIOBase):
    """A file of ever the same frame, that counts what is read from it."""

    def __init__(self, frame: bytes):
        self.frame, self.given = frame, 0

    def read(self, size: int = -1, /) -> bytes:
        self.given += 1
        return self.frame


def test_no_more_is_read_ahead_than_the_threads_need() -> None:
    file = Endless(sized_frame(random.Random(1).randbytes(1 << 20)))
    with ThreadPoolExecutor(2) as executor:
        pieces = decompress_in_threads(file, MAX_WINDOW, executor=executor, most=4)  # type: ignore[arg-type]
        for _ in range(30):
            next(pieces)
        assert file.given <= 40
        pieces.close()


BOMB = """
from concurrent.futures import ThreadPoolExecutor
from pilekit.shards.read.parallel_frames import decompress_in_threads
with ThreadPoolExecutor(2) as executor, open(sys.argv[1], "rb") as file:
    value = sum(map(len, decompress_in_threads(file, 128 << 20, executor=executor, most=4)))
"""


def test_a_bomb_is_decoded_piece_by_piece(tmp_path: Path) -> None:
    """A frame of some kilobytes that holds a gigabyte is not decoded at once."""
    path = tmp_path / "bomb.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(1 << 30)))
    assert path.stat().st_size < 1 << 16
    size, kib = value_and_memory(BOMB, path)
    assert size == 1 << 30
    assert kib < 60_000
