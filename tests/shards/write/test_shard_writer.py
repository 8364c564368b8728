"""A written shard is read back byte for byte by every tool, and appears only when it is complete; seek tables."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.read.read_errors import ShardDamage
from pilekit.shards.read.reader import read
from pilekit.shards.write.seekable_frames import MAX_FRAMES, FrameWriter, read_seek_table, seek_table
from pilekit.shards.write.shard_writer import ShardWriter
from tests.refusing import refused
from tests.shards.making import LABELS, flipped, lines, some_lines, texts, unzstd, write_shard, zstd_frame
from tests.shards.reading import frames_of

NAMES = ("a.jsonl.zst", "a.jsonl", "a.jsonl.gz")


@given(st.lists(lines(), max_size=12), st.integers(1, 400))
def test_lines_come_back_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, some: list[bytes], size: int) -> None:
    folder = tmp_path_factory.mktemp("written")
    for name in NAMES:
        with ShardWriter(folder / name, frame_bytes=size) as writer:
            writer.write_lines(some)
    expected = b"".join(line + b"\n" for line in some)
    assert unzstd(folder / "a.jsonl.zst") == expected
    assert (folder / "a.jsonl").read_bytes() == expected
    assert gzip.decompress((folder / "a.jsonl.gz").read_bytes()) == expected
    assert writer.documents == len(some)
    assert writer.text_bytes == len(expected)


def test_the_same_lines_give_the_same_frames_of_about_a_mebibyte_cut_at_lines(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        one, other = (write_shard(tmp_path / folder / name, some_lines(9000)) for folder in ("x", "y"))
        assert one.read_bytes() == other.read_bytes()
    frames = frames_of(one)
    assert len(frames) == 3
    for text in frames:
        assert text.endswith(b"\n")
        assert len(text) < (1 << 20) + 1000


@given(st.lists(st.tuples(texts, st.sampled_from([*LABELS, "(none)"])), max_size=8))
def test_batches_made_by_hand(tmp_path_factory: pytest.TempPathFactory, some: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("written") / "a.jsonl.zst"
    batch = DocumentBatch([t for t, _ in some], [s for _, s in some], "made", np.arange(len(some)))
    with ShardWriter(path) as writer:
        writer.write(batch)
    assert [pair for b in read(path) for pair in zip(b.texts, b.subsets, strict=True)] == some


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    for name in NAMES:
        path = tmp_path / name
        path.write_bytes(b"from before")
        with pytest.raises(RuntimeError, match="in the middle"), ShardWriter(path, frame_bytes=100) as writer:
            writer.write_lines(some_lines(50))
            raise RuntimeError("in the middle")
        with pytest.raises(PilekitError, match="holds a newline"), ShardWriter(path) as writer:
            writer.write_lines([b"{}", b"a\nb", b"{}"])
        with pytest.raises(PilekitError, match=rf"{name}: is not open"):
            writer.write_lines([b"{}"])
        assert path.read_bytes() == b"from before"
    assert len(list(tmp_path.iterdir())) == 3
    for name, why in (("a.txt", "not named like a shard"), ("a.parquet", "shards are written as")):
        with pytest.raises(PilekitError, match=why):
            ShardWriter(tmp_path / name)


def test_limits_of_frames() -> None:
    """A text larger than the largest frame is several frames; more frames than a reader accepts are refused."""
    for threads in (1, 2):
        file = io.BytesIO()
        writer, texts = FrameWriter(file, 3, most_bytes=10), [b"0123456789" * 3, b"x"]
        assert list(writer.write_all(texts, threads)) == texts
        assert [decoded for _, decoded in writer.frames] == [10, 10, 10, 1]
        assert read_seek_table(file, len(file.getvalue())) == writer.frames
        with pytest.raises(PilekitError, match="more than 4 frames"):
            list(FrameWriter(file, 3, most_frames=4).write_all([b"x"] * 5, threads))


Frames = list[tuple[int, int]]

frames = st.lists(st.tuples(st.integers(8, 300), st.integers(0, (1 << 32) - 1)), max_size=20)


def with_table(listed: Frames) -> bytes:
    """A file with a table; its frames are only bytes, because a reader of the table does not look at them."""
    return b"f" * sum(stored for stored, _ in listed) + seek_table(listed)


def table_of(data: bytes) -> Frames | None:
    return read_seek_table(io.BytesIO(data), len(data))


def checked(listed: Frames) -> bytes:
    """The other form of the format, with a checksum in each entry."""
    entries = b"".join(struct.pack("<III", *entry, 0xDEADBEEF) for entry in listed)
    body = entries + struct.pack("<IBI", len(listed), 0x80, 0x8F92EAB1)
    return b"f" * sum(stored for stored, _ in listed) + struct.pack("<II", 0x184D2A5E, len(body)) + body


@given(frames)
@example([])
def test_a_table_is_read_as_written(listed: Frames) -> None:
    assert table_of(with_table(listed)) == listed
    assert table_of(checked(listed)) == listed


@given(st.binary(max_size=200))
@example(b"")
@example(zstd_frame(b"text\n"))
@example(struct.pack("<II", 0x184D2A5E, 20) + b"\0" * 20)  # a skippable frame of another tool
def test_a_file_without_table_has_none(data: bytes) -> None:
    assert table_of(data) is None


@given(frames, st.data())
def test_every_flipped_bit_of_a_table_is_an_error(listed: Frames, data: st.DataObject) -> None:
    whole = with_table(listed)
    begin = sum(stored for stored, _ in listed)
    position, bit = data.draw(st.integers(begin, len(whole) - 1)), data.draw(st.integers(0, 7))
    changed = flipped(whole, position, 1 << bit)
    with pytest.raises(ShardDamage, match="add up"):
        table_of(b"f" + with_table(listed))
    entries = begin + 8
    decoded_size = entries <= position < len(whole) - 9 and (position - entries) % 8 >= 4
    unused_bit = position == len(whole) - 5 and (bit < 2 or (bit == 7 and not listed))
    if decoded_size or unused_bit:
        # Only decoding tells the decoded size. The format does not use two of the bits, and one says how long entries
        # are, of which there may be none.
        assert table_of(changed) is not None
    else:
        with pytest.raises(ShardDamage) as raised:
            table_of(changed)
        assert begin <= raised.value.byte <= len(whole)


@given(st.binary(max_size=60), st.integers(0, (1 << 32) - 1), st.integers(0, 255))
def test_a_hostile_footer_is_an_error(before: bytes, number: int, descriptor: int) -> None:
    data = before + struct.pack("<IBI", number, descriptor, 0x8F92EAB1)
    if len(data) >= 17:
        with pytest.raises(ShardDamage, match="seek table"):
            table_of(data)
    else:
        assert table_of(data) is None


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


def test_what_is_no_path_is_one_line() -> None:
    refused("path is where the shard is to be written, not 5", ShardWriter, 5)
