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
from tests.dedup.given import inputs_of
from tests.shards import making


def check_clean(folder: Path, lines: list[bytes], kept: list[bool], content: bytes, threads: int, frames: int) -> Path:
    """Clean a shard of this content in some frames; its index is the one that `pilekit index` makes by reading it."""
    shard, out = folder / "a.jsonl.zst", folder / f"out-{threads}" / "a.jsonl.zst"
    size = -(-max(1, len(content)) // frames)
    shard.write_bytes(b"".join(making.zstd_frame(content[i : i + size]) for i in range(0, max(1, len(content)), size)))
    write_mask(folder / "mask", "a.jsonl", fingerprint(str(shard)), np.array(kept, dtype=np.bool_))
    source, manifest = shard_of(str(shard)), load_manifest()
    mask, inputs = folder / "mask", inputs_of(source)
    files = clean_shard(
        source, lambda amount: None, path=out, mask=mask, inputs=inputs, threads=threads, manifest=manifest
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


@given(st.lists(st.tuples(making.lines(), st.booleans()), max_size=30), st.booleans(), st.integers(1, 3))
def test_lines_stay_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[bytes, bool]], last_newline: bool, frames: int
) -> None:
    lines = [line for line, _ in drawn]
    kept = [chosen and bool(line.strip()) for line, chosen in drawn]
    content = b"\n".join(lines) + (b"\n" if last_newline else b"")
    check_clean(tmp_path_factory.mktemp("clean"), lines, kept, content, 1, frames)


def test_several_frames_and_threads(tmp_path: Path) -> None:
    lines = making.some_lines(20_000)
    kept = (np.arange(len(lines)) % 7 != 3).tolist()
    content = b"".join(line + b"\n" for line in lines)
    one, two = (check_clean(tmp_path, lines, kept, content, threads, 5) for threads in (1, 3))
    assert one.read_bytes() == two.read_bytes()
    assert np.diff(load_index(f"{two}.index.parquet").frames.text_offset).min() >= 1 << 20
