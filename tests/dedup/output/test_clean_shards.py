"""Clean shards of any shard: kept lines stay byte for byte, and the index fits the written lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import load_manifest, shard_of
from pilekit.dedup.output.clean_shards import clean_shard
from pilekit.shards.fingerprint import fingerprint
from pilekit.shards.index.build import build_index
from pilekit.shards.index.format import find_index, load_index
from pilekit.shards.keep_mask import write_mask
from tests.shards import making


def clean(folder: Path, content: bytes, kept: list[bool], threads: int = 1, frames: int = 1) -> Path:
    shard = folder / "a.jsonl.zst"
    size = -(-max(1, len(content)) // frames)
    shard.write_bytes(b"".join(making.zstd_frame(content[i : i + size]) for i in range(0, max(1, len(content)), size)))
    write_mask(folder / "mask", "a.jsonl", fingerprint(str(shard)), np.array(kept, dtype=np.bool_))
    out = folder / f"out-{threads}" / "a.jsonl.zst"
    written = clean_shard(
        shard_of(str(shard)),
        lambda amount: None,
        path=out,
        mask=folder / "mask",
        threads=threads,
        manifest=load_manifest(),
    )
    assert written == ([out, Path(f"{out}.index.parquet")] if any(kept) else [])
    return out


def assert_same_index(shard: Path) -> None:
    """The index beside the shard is the one that `pilekit index` makes by reading it."""
    there = load_index(f"{shard}.index.parquet")
    anew = build_index(shard_of(str(shard)), place=str(shard.parent / "anew.index.parquet"))
    assert there.header == anew.header
    assert there.columns().equals(anew.columns())
    for name in ("offset", "text_offset", "line", "line_at"):
        assert getattr(there.frames, name).tolist() == getattr(anew.frames, name).tolist()
    assert find_index(shard_of(str(shard))) is not None


@given(st.lists(st.tuples(making.lines(), st.booleans()), max_size=30), st.booleans(), st.integers(1, 3))
def test_lines_stay_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[bytes, bool]], last_newline: bool, frames: int
) -> None:
    lines = [line for line, _ in drawn]
    kept = [chosen and bool(line.strip()) for line, chosen in drawn]
    content = b"\n".join(lines) + (b"\n" if last_newline else b"")
    out = clean(tmp_path_factory.mktemp("apply"), content, kept, frames=frames)
    expected = b"".join(line + b"\n" for line, chosen in zip(lines, kept, strict=True) if chosen)
    if not any(kept):
        assert not out.exists()
        return
    assert making.unzstd(out) == expected
    assert_same_index(out)


def test_several_frames_and_threads(tmp_path: Path) -> None:
    lines = making.some_lines(20_000)
    content = b"".join(line + b"\n" for line in lines)
    kept = (np.arange(len(lines)) % 7 != 3).tolist()
    one, two = (clean(tmp_path, content, kept, threads, frames=5).read_bytes() for threads in (1, 3))
    assert one == two
    expected = b"".join(line + b"\n" for line, chosen in zip(lines, kept, strict=True) if chosen)
    assert making.unzstd(tmp_path / "out-3" / "a.jsonl.zst") == expected
    assert_same_index(tmp_path / "out-3" / "a.jsonl.zst")
    frames = load_index(tmp_path / "out-3" / "a.jsonl.zst.index.parquet").frames
    assert np.diff(frames.text_offset).min() >= 1 << 20
    assert len(frames.line) == len(expected) // (1 << 20) + 1
