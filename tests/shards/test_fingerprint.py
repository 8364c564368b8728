"""A fingerprint depends on the size and the sampled bytes only."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Shard
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint, fingerprint, inputs_for

PIECE = 16 << 10


def slow_fingerprint(data: bytes) -> Fingerprint:
    begins = [(len(data) - PIECE) * piece // 15 for piece in range(16)] if len(data) > PIECE else [0]
    sampled = b"".join(data[begin : begin + PIECE] for begin in begins)
    return Fingerprint(len(data), xxhash.xxh3_128_hexdigest(sampled))


@given(st.one_of(st.integers(0, 40_000), st.integers(0, 400_000)), st.randoms())
def test_size_and_sixteen_pieces(tmp_path_factory: pytest.TempPathFactory, size: int, random: object) -> None:
    path = tmp_path_factory.mktemp("sampled") / "a.jsonl"
    data = random.randbytes(size)  # type: ignore[attr-defined]
    path.write_bytes(data)
    expected = slow_fingerprint(data)
    if PIECE < size < PIECE + 16:  # pieces that begin at the same byte count once
        assert fingerprint(str(path)).size == size
    else:
        assert fingerprint(str(path)) == expected


def test_a_long_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: reading it whole would take an hour
    before = fingerprint(str(path))
    assert before.size == 1 << 40
    for place in (0, PIECE - 1, (1 << 40) - 1):
        with path.open("rb+") as file:
            file.seek(place)
            file.write(b"1")
        assert fingerprint(str(path)) != before
        before = fingerprint(str(path))


def test_a_url_gives_the_same(tmp_path: Path) -> None:
    data = bytes(range(256)) * 3000
    (tmp_path / "a.jsonl").write_bytes(data)
    with fsspec.open("memory://fingerprint/a.jsonl", "wb") as file:
        file.write(data)
    assert fingerprint("memory://fingerprint/a.jsonl") == fingerprint(str(tmp_path / "a.jsonl"))
    for missing in ("no/such.jsonl", "memory://no/such.jsonl"):
        with pytest.raises(PilekitError, match=r"such\.jsonl: no such file"):
            fingerprint(missing)


def test_an_output_folder_must_not_hold_the_input(tmp_path: Path) -> None:
    inside = tmp_path / "data" / "train"
    inside.mkdir(parents=True)
    (inside / "00.jsonl").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    shards = [Shard("train/00.jsonl", str(inside / "00.jsonl"))]
    for folder in (tmp_path / "data", tmp_path / "link", inside):
        with pytest.raises(PilekitError, match=r"holds .*00\.jsonl, which is to be read; name another folder"):
            inputs_for(folder, shards)
    assert inputs_for(inside / "out", shards).fingerprints["train/00.jsonl"][0] == 4
