"""A written shard is read back byte for byte by every tool, and appears only when it is complete."""

from __future__ import annotations

import errno
import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.shards.read.reader import read
from pilekit.shards.write.seek_table import read_seek_table
from pilekit.shards.write.shard_writer import ShardWriter
from tests.shards.making import LABELS, lines, some_lines, texts, unzstd

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
    for name in ("a.jsonl.zst", "a.jsonl.gz"):
        for folder in ("x", "y"):
            with ShardWriter(tmp_path / folder / name) as writer:
                writer.write_lines(some_lines(9000))
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()
    data, position = (tmp_path / "x" / "a.jsonl.zst").read_bytes(), 0
    table = read_seek_table(io.BytesIO(data), len(data))
    assert table is not None
    assert len(table) == 3
    for stored, decoded in table:
        part = zstandard.ZstdDecompressor().decompress(data[position : position + stored])
        assert part.endswith(b"\n")
        assert len(part) == decoded < (1 << 20) + 1000
        position += stored


@given(st.lists(st.tuples(texts, st.sampled_from([*LABELS, "(none)"])), max_size=8))
def test_batches_that_were_not_read_from_a_shard(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("written") / "a.jsonl.zst"
    batch = DocumentBatch([t for t, _ in some], [s for _, s in some], "made", np.arange(len(some)))
    with ShardWriter(path) as writer:
        writer.write(batch)
    assert [pair for b in read(path) for pair in zip(b.texts, b.subsets, strict=True)] == some


def test_nothing_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

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
        with monkeypatch.context() as patch:  # the disk reports that it is full only when the file is flushed
            patch.setattr(os, "fsync", full)
            with pytest.raises(PilekitError, match="cannot be written: No space left"), ShardWriter(path):
                pass
        assert path.read_bytes() == b"from before"
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(PilekitError, match="cannot be written"), ShardWriter(tmp_path / "a.jsonl" / "b.jsonl"):
        pass
    for name, why in (("a.txt", "not named like a shard"), ("a.parquet", "shards are written as")):
        with pytest.raises(PilekitError, match=why):
            ShardWriter(tmp_path / name)
