"""Frames: the same bytes with any number of threads, and at most as many frames as a reader accepts."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError
from pilekit.shards.write import frame_writer
from pilekit.shards.write.frame_writer import FrameWriter
from pilekit.shards.write.seek_table import read_seek_table


def written(texts: list[bytes], threads: int, level: int = 3) -> bytes:
    file = io.BytesIO()
    with ThreadPoolExecutor(max(1, threads)) as executor:
        writer = FrameWriter(file, level, executor if threads else None, most=2 * threads)
        for text in texts:
            writer.write(memoryview(text))
        writer.finish()
    assert read_seek_table(file, len(file.getvalue())) == writer.frames
    return file.getvalue()


@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(1, 4), st.integers(1, 5))
def test_each_text_is_a_checksummed_frame_of_known_size(texts: list[bytes], threads: int, level: int) -> None:
    data = written(texts, threads, level)
    assert data == written(texts, 0, level)
    table = read_seek_table(io.BytesIO(data), len(data))
    assert table is not None
    position = 0
    for (stored, decoded), text in zip(table, texts or [b""], strict=True):
        frame = data[position : position + stored]
        assert zstandard.get_frame_parameters(frame).has_checksum
        assert zstandard.get_frame_parameters(frame).content_size == decoded == len(text)
        assert zstandard.ZstdDecompressor().decompress(frame) == text
        position += stored


def test_limits_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text larger than the largest frame is several frames; more frames than a reader accepts are refused."""
    monkeypatch.setattr(frame_writer, "MAX_FRAME_BYTES", 10)
    monkeypatch.setattr(frame_writer, "MAX_FRAMES", 4)
    assert written([b"0123456789" * 3, b"x"], 2) == written([b"0123456789"] * 3 + [b"x"], 0)
    for threads in (0, 2):
        with pytest.raises(PilekitError, match="more than 4 frames"):
            written([b"x"] * 5, threads)
