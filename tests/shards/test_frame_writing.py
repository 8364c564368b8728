"""Frames: the same bytes with any number of threads, and at most as many frames as a reader accepts."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError
from pilekit.shards.write import frame_writer as frame_writing
from pilekit.shards.write.frame_writer import FrameWriter
from pilekit.shards.write.seek_table import read_seek_table
from tests.shards.making import some_lines


def written(texts: list[bytes], threads: int, level: int = 3) -> bytes:
    file = io.BytesIO()
    if threads:
        with ThreadPoolExecutor(threads) as executor:
            writer = FrameWriter(file, level, executor, most=2 * threads)
            for text in texts:
                writer.write(memoryview(text))
            writer.finish()
    else:
        writer = FrameWriter(file, level)
        for text in texts:
            writer.write(text)
        writer.finish()
    assert read_seek_table(file, len(file.getvalue())) == writer.frames
    return file.getvalue()


@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(1, 4), st.integers(1, 5))
def test_each_text_is_a_checksummed_frame_of_known_size(texts: list[bytes], threads: int, level: int) -> None:
    data = written(texts, threads, level)
    assert data == written(texts, 0, level)
    table = read_seek_table(io.BytesIO(data), len(data))
    assert table is not None
    assert [decoded for _, decoded in table] == [len(text) for text in texts or [b""]]
    position = 0
    for (stored, _), text in zip(table, texts or [b""], strict=True):
        frame = data[position : position + stored]
        assert zstandard.get_frame_parameters(frame).has_checksum
        assert zstandard.get_frame_parameters(frame).content_size == len(text)
        assert zstandard.ZstdDecompressor().decompress(frame) == text
        position += stored


def test_a_text_larger_than_the_largest_frame_is_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writing, "MAX_FRAME_BYTES", 1000)
    text = b"".join(some_lines(9))
    assert written([text, b"x"], 2) == written([text[at : at + 1000] for at in range(0, len(text), 1000)] + [b"x"], 0)


def test_more_frames_than_a_reader_accepts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_writing, "MAX_FRAMES", 3)
    assert written([b"x"] * 3, 2)
    for threads in (0, 2):
        with pytest.raises(PilekitError, match="more than 3 frames"):
            written([b"x"] * 4, threads)
