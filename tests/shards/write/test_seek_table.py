"""Seek tables: a table is read as written, a hostile table costs nothing, a wrong byte is an error."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.write.seek_table import MAX_FRAMES, read_seek_table, seek_table
from tests.shards.making import zstd_frame

Frames = list[tuple[int, int]]

frames = st.lists(st.tuples(st.integers(8, 300), st.integers(0, (1 << 32) - 1)), max_size=20)


def with_table(listed: Frames) -> bytes:
    """A file with a table; its frames are only bytes, because a reader of the table does not look at them."""
    return b"f" * sum(stored for stored, _ in listed) + seek_table(listed)


def read(data: bytes) -> Frames | None:
    return read_seek_table(io.BytesIO(data), len(data))


def checked(listed: Frames) -> bytes:
    """The other form of the format, with a checksum in each entry."""
    entries = b"".join(struct.pack("<III", *entry, 0xDEADBEEF) for entry in listed)
    body = entries + struct.pack("<IBI", len(listed), 0x80, 0x8F92EAB1)
    return b"f" * sum(stored for stored, _ in listed) + struct.pack("<II", 0x184D2A5E, len(body)) + body


@given(frames)
@example([])
def test_a_table_is_read_as_written(listed: Frames) -> None:
    assert read(with_table(listed)) == listed
    assert read(checked(listed)) == listed


@given(st.binary(max_size=200))
@example(b"")
@example(zstd_frame(b"text\n"))
@example(struct.pack("<II", 0x184D2A5E, 20) + b"\0" * 20)  # a skippable frame of another tool
def test_a_file_without_table_has_none(data: bytes) -> None:
    assert read(data) is None


@given(frames, st.data())
def test_every_flipped_bit_of_a_table_is_an_error(listed: Frames, data: st.DataObject) -> None:
    whole = bytearray(with_table(listed))
    begin = sum(stored for stored, _ in listed)
    position = data.draw(st.integers(begin, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    whole[position] ^= 1 << bit
    with pytest.raises(ShardDamage, match="add up"):
        read(b"f" + with_table(listed))
    entries = begin + 8
    decoded_size = entries <= position < len(whole) - 9 and (position - entries) % 8 >= 4
    unused_bit = position == len(whole) - 5 and bit < 2
    if decoded_size or unused_bit:
        # Only decoding tells the decoded size, and the format does not use two of the bits.
        assert read(bytes(whole)) is not None
    else:
        with pytest.raises(ShardDamage) as raised:
            read(bytes(whole))
        assert begin <= raised.value.byte <= len(whole)


@given(st.binary(max_size=60), st.integers(0, (1 << 32) - 1), st.integers(0, 255))
def test_a_hostile_footer_is_an_error(before: bytes, number: int, descriptor: int) -> None:
    data = before + struct.pack("<IBI", number, descriptor, 0x8F92EAB1)
    if len(data) >= 17:
        with pytest.raises(ShardDamage, match="seek table"):
            read(data)
    else:
        assert read(data) is None


def test_a_table_of_too_many_frames_is_refused_unread_and_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    for number in (MAX_FRAMES + 1, (1 << 29) - 3):
        with (tmp_path / "a.zst").open("wb+") as file:  # a hole
            file.seek(1 << 40)
            file.write(struct.pack("<II", 0x184D2A5E, number * 8 + 9))
            file.seek(number * 8, 1)
            file.write(struct.pack("<IBI", number, 0, 0x8F92EAB1))
            with pytest.raises(ShardDamage, match=f"{number:,} frames"):
                read_seek_table(file, file.tell())
    data = with_table([(30, 5)])
    with pytest.raises(ShardDamage, match="shorter"):
        read_seek_table(io.BytesIO(data[:-3]), len(data))
