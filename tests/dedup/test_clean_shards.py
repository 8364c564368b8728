"""Clean shards of any shard: kept lines stay byte for byte, and the index fits the written lines."""

from __future__ import annotations

import io
import struct
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import load_manifest, shard_of
from pilekit.dedup.output.clean_shards import clean_shard
from pilekit.dedup.output.untouched_frames import UntouchedFrames
from pilekit.shards.corpus_job import Share
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.build import build_index
from pilekit.shards.index.document_rows import SCANNED_FROM_BYTES
from pilekit.shards.index.format import find_index, load_index
from pilekit.shards.keep_mask import write_mask
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.change_check import ShardChanged
from pilekit.shards.read.lines import LineBlock
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.write.seekable_frames import FRAME_BYTES, read_seek_table
from pilekit.shards.write.shard_writer import ShardWriter
from tests.dedup.given import inputs_of
from tests.shards import making


def check_clean(
    folder: Path, lines: list[bytes], kept: list[bool], stored: bytes, share: Share, frame_bytes: int = FRAME_BYTES
) -> Path:
    """Clean a shard that is stored so; its index is the one that `pilekit index` makes by reading it."""
    shard, out = folder / "a.jsonl.zst", folder / f"out-{share.threads}-{share.stored}" / "a.jsonl.zst"
    shard.write_bytes(stored)
    write_mask(folder / "mask", "a.jsonl", fingerprint(str(shard)), np.array(kept, dtype=np.bool_))
    source, manifest, mask = shard_of(str(shard)), load_manifest(), folder / "mask"
    files = clean_shard(
        source,
        lambda amount: None,
        path=out,
        mask=mask,
        inputs=inputs_of(source),
        share=share,
        manifest=manifest,
        frame_bytes=frame_bytes,
    )
    if not any(kept):
        assert files == []
        assert not out.exists()
        return out
    assert files == [out, Path(f"{out}.index.parquet")]
    assert making.unzstd(out) == b"".join(line + b"\n" for line, chosen in zip(lines, kept, strict=True) if chosen)
    written = load_index(f"{out}.index.parquet")
    made = build_index(shard_of(str(out)), str(out.parent / "made.index.parquet"))
    assert written.header == made.header
    assert written.columns().equals(made.columns())
    for name in ("offset", "text_offset", "line", "line_at"):
        assert getattr(written.frames, name).tolist() == getattr(made.frames, name).tolist()
    assert find_index(shard_of(str(out))) is not None
    return out


DECODING, SCANNING = Share(False, 1), Share(True, 3, stored=SCANNED_FROM_BYTES)


def in_frames(content: bytes, frames: int) -> bytes:
    """The content, stored in so many frames."""
    size = -(-max(1, len(content)) // frames)
    return b"".join(making.zstd_frame(content[i : i + size]) for i in range(0, max(1, len(content)), size))


@given(st.lists(st.tuples(making.lines(), st.booleans()), max_size=30), st.booleans(), st.integers(1, 3))
def test_lines_stay_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[bytes, bool]], last_newline: bool, frames: int
) -> None:
    lines = [line for line, _ in drawn]
    kept = [chosen and bool(line.strip()) for line, chosen in drawn]
    stored = in_frames(b"\n".join(lines) + (b"\n" if last_newline else b""), frames)
    for share in (DECODING, SCANNING):
        check_clean(tmp_path_factory.mktemp("clean"), lines, kept, stored, share)


def test_several_frames_and_threads(tmp_path: Path) -> None:
    lines = making.some_lines(20_000)
    kept = (np.arange(len(lines)) % 7 != 3).tolist()
    stored = in_frames(b"".join(line + b"\n" for line in lines), 5)
    one, two = (check_clean(tmp_path, lines, kept, stored, share) for share in (DECODING, SCANNING))
    assert one.read_bytes() == two.read_bytes()
    assert np.diff(load_index(f"{two}.index.parquet").frames.text_offset).min() >= 1 << 20


class Frame(NamedTuple):
    """A frame of a shard: the text between these bytes."""

    begin: int
    end: int
    stored: bytes
    has_checksum: bool
    has_size: bool


EMPTY, SKIPPABLE = making.zstd_frame(b""), struct.pack("<II", 0x184D2A53, 3) + b"abc"


def frames_of(content: bytes, starts: list[int], random: Random) -> Iterator[tuple[Frame, bytes]]:
    """The content in frames, most of them of whole lines and with all that an output needs; and what lies between."""
    begin = 0
    while begin < len(content):
        end = starts[min(bisect(starts, begin) + random.randrange(8), len(starts) - 1)]
        end = min(len(content), max(begin + 1, end + random.choice([0] * 9 + [-20])))
        has_checksum, has_size = random.random() < 0.85, random.random() < 0.85
        level = random.choice([1, 3, 19])
        how = zstandard.ZstdCompressor(level, write_checksum=has_checksum, write_content_size=has_size)
        between = random.choice([b"", b"", EMPTY, SKIPPABLE, EMPTY + EMPTY + SKIPPABLE])
        yield Frame(begin, end, how.compress(content[begin:end]), has_checksum, has_size), between
        begin = end


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("frame_bytes", [1, 300, 800])
def test_frames_that_lose_no_line_are_taken_as_they_are(tmp_path: Path, seed: int, frame_bytes: int) -> None:
    random = Random(seed)
    lines = [making.record("é" * random.randrange(120)) if random.randrange(30) else b" " for _ in range(300)]
    kept = [line != b" " and random.random() < 0.95 for line in lines]
    last_newline = seed % 2 == 0
    content = b"\n".join([*lines, b""] if last_newline else lines)
    starts = [0, *np.cumsum([len(line) + 1 for line in lines]).tolist()]
    framed = list(frames_of(content, starts, random))
    stored = b"".join(between + frame.stored for frame, between in framed)

    # Small frames are read together, and only one that is read alone can be taken.
    alone: dict[int, Frame] = {}
    first, count = 0, 0
    for frame, _ in framed:
        count += 1
        if frame.end - first >= frame_bytes:
            if count == 1 and frame.has_checksum and frame.has_size and content[frame.end - 1 :][:1] == b"\n":
                alone[first] = frame
            first, count = frame.end, 0
    expected: list[tuple[bytes, bytes | None]] = []
    held, at = b"", 0
    while at < len(lines):
        taken = alone.get(starts[at])
        after = 0 if taken is None else starts.index(taken.end)
        if taken and all(kept[at:after]) and (not held or len(held) >= frame_bytes // 2):
            expected += [(held, None)] * bool(held) + [(content[taken.begin : taken.end], taken.stored)]
            held, at = b"", after
            continue
        held += (lines[at] + b"\n") * kept[at]
        at += 1
        if len(held) >= frame_bytes:
            expected.append((held, None))
            held = b""
    expected += [(held, None)] * bool(held)
    assert sum(frame is not None for _, frame in expected) > 3

    outs = [check_clean(tmp_path, lines, kept, stored, share, frame_bytes) for share in (DECODING, SCANNING)]
    written = outs[0].read_bytes()
    assert outs[1].read_bytes() == written
    sizes = read_seek_table(io.BytesIO(written), len(written))
    assert sizes is not None
    assert [decoded for _, decoded in sizes] == [len(text) for text, _ in expected]
    begin = 0
    for (size, _), (_, frame) in zip(sizes, expected, strict=True):
        assert frame in (None, written[begin : begin + size])
        begin += size


def test_an_untouched_shard_keeps_its_level(tmp_path: Path) -> None:
    lines = making.some_lines(20_000)
    with ShardWriter(tmp_path / "a.jsonl.zst", level=19) as writer:
        writer.write_lines(lines)
    stored = (tmp_path / "a.jsonl.zst").read_bytes()
    for share in (DECODING, SCANNING):
        out = check_clean(tmp_path, lines, [True] * len(lines), stored, share)
        frames = read_seek_table(io.BytesIO(stored), len(stored))
        assert frames is not None
        untouched = sum(size for size, decoded in frames if decoded >= FRAME_BYTES)
        assert untouched > len(stored) // 2
        assert out.read_bytes()[:untouched] == stored[:untouched]


@pytest.mark.parametrize("left", [None, 0, 5, 1000])
def test_a_frame_that_is_gone_is_not_taken(tmp_path: Path, left: int | None) -> None:
    path = making.write_shard(tmp_path / "a.jsonl.zst", making.some_lines(9000))
    untouched = UntouchedFrames(str(path), FRAME_BYTES)
    with pytest.raises(ShardChanged), shard_blocks(str(path), ReadOptions(), watch=untouched) as blocks:
        block = next(blocks)
        assert isinstance(block, LineBlock)
        frame, stored = untouched.stored(block.data), path.read_bytes()
        assert frame
        assert stored.startswith(frame)
        path.unlink()
        if left is not None:
            path.write_bytes(stored[:left])
        assert untouched.stored(block.data) is None
