"""Frames: every frame is read, every end is checked, and every kind of damage is reported with its place."""

from __future__ import annotations

import io
import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.shards.read.read_errors import ShardDamage
from pilekit.shards.read.zstd_frames import MAX_WINDOW, decompress_frame_at, decompress_frames, parse_frame_header
from pilekit.shards.write.seekable_frames import seek_table
from tests.shards.making import flipped, some_lines, zstd_frame

TEXT = b"\n".join(some_lines(9000)) + b"\n"  # about 3 MB: several reads, many blocks


def decoded(data: bytes, max_window: int = MAX_WINDOW) -> bytes:
    return b"".join(decompress_frames(io.BytesIO(data), max_window=max_window))


def damage(data: bytes) -> tuple[bytes, ShardDamage]:
    """The text before the damage, and the damage."""
    pieces: list[bytes] = []
    with pytest.raises(ShardDamage) as raised:
        pieces.extend(decompress_frames(io.BytesIO(data)))
    return b"".join(pieces), raised.value


@given(
    st.lists(
        st.tuples(st.binary(max_size=400), st.integers(1, 3000), st.booleans(), st.booleans()), min_size=1, max_size=6
    )
)
def test_every_frame_of_any_kind_is_read_and_its_header_is_parsed_as_by_the_library(
    parts: list[tuple[bytes, int, bool, bool]],
) -> None:
    stored, expected = b"", b""
    for unit, times, checksum, sized in [*parts, (TEXT, 1, True, True)]:
        data = unit * times
        compress = zstandard.ZstdCompressor(write_checksum=checksum).compress
        frame = compress(data) if sized else zstd_frame(data, checksum)
        header, parameters = parse_frame_header(frame), zstandard.get_frame_parameters(frame)
        assert header is not None
        assert header.length == zstandard.frame_header_size(frame)
        assert (header.window, header.checksum) == (parameters.window_size, parameters.has_checksum)
        stored += frame + seek_table([(len(data), len(frame))])
        expected += data
    assert decoded(stored) == expected


@given(st.data())
def test_a_file_cut_anywhere_but_at_a_frame_border_is_cut_off(data: st.DataObject) -> None:
    text = TEXT[:200_000]
    first, second = zstd_frame(text), zstd_frame(text, checksum=True)
    stored = first + second
    cut = data.draw(st.integers(1, len(stored) - 1).filter(lambda n: n != len(first)))
    before, error = damage(stored[:cut])
    assert (text + text).startswith(before)
    assert error.frame == (0 if cut < len(first) else 1)
    assert error.byte == cut
    assert "cut off" in error.reason


def test_bit_flips_in_a_checksummed_frame_never_pass() -> None:
    text = TEXT[:300_000]
    stored = zstd_frame(text, checksum=True)
    randomness = random.Random(0)
    for _ in range(300):
        position = randomness.randrange(len(stored))
        try:
            result = decoded(flipped(stored, position, 1 << randomness.randrange(8)))
        except ShardDamage as error:
            assert error.frame == 0
            if error.since is not None:
                assert error.since <= position < error.byte
        else:
            assert result == text, f"byte {position} was changed and nobody noticed"


def test_garbage() -> None:
    stored = zstd_frame(b"text\n")
    for garbage in (b"\0", b"garbage after the frame", b"\x28\xb5", b"\x50\x2a", bytes(5000)):
        before, error = damage(stored + garbage)
        assert before == b"text\n"
        assert error.frame == 1
        assert error.byte in (len(stored), len(stored + garbage))
    for keep in (1, 5, 7, 8, 12):
        assert "cut off" in damage(stored + seek_table([(1, 1)])[:keep])[1].reason


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans()), min_size=1, max_size=8))
def test_every_frame_reports_its_first_byte_and_can_be_decoded_alone(parts: list[tuple[bytes, bool]]) -> None:
    stored, begins = b"", []
    for data, skippable in parts:
        if skippable:
            stored += seek_table([(1, 1)])
        begins.append(len(stored))
        stored += zstd_frame(data, checksum=True)
    told: list[tuple[int, int, int]] = []
    decoded = b""
    pieces = decompress_frames(io.BytesIO(stored), on_frame=lambda number, at: told.append((number, at, len(decoded))))
    for piece in pieces:
        decoded += piece
    before = [sum(len(data) for data, _ in parts[:number]) for number in range(len(parts))]
    assert told == list(zip(range(len(parts)), begins, before, strict=True))
    for number, (data, _) in enumerate(parts):
        alone = decompress_frame_at(io.BytesIO(stored), begins[number], number=number)
        assert b"".join(alone) == data


def test_a_window_larger_than_allowed_is_refused_before_it_is_allocated() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stored = frame.compress(b"text\n") + frame.flush()
    for pieces in (decompress_frames(io.BytesIO(stored)), decompress_frame_at(io.BytesIO(stored), 0, number=0)):
        with pytest.raises(ShardDamage, match=r"window of 256 MiB.*--long=31"):
            list(pieces)
    assert decoded(stored, max_window=1 << 28) == b"text\n"


def test_a_frame_that_needs_a_dictionary_is_refused_with_its_remedy() -> None:
    samples = some_lines(400)
    dictionary = zstandard.train_dictionary(2048, samples)
    for size in (True, False):
        frame = zstandard.ZstdCompressor(dict_data=dictionary, write_content_size=size).compress(b"text " * 90)
        header = parse_frame_header(frame)
        assert header is not None
        assert header.dictionary == dictionary.dict_id() > 0
        with pytest.raises(ShardDamage, match=r"frame 1 says that it needs a dictionary.* recompress it without one"):
            list(decompress_frames(io.BytesIO(zstd_frame(b"first") + frame)))
