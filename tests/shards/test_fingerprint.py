"""A fingerprint depends on the size and the sampled bytes only."""

from __future__ import annotations

import random
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


@given(st.one_of(st.integers(0, 40_000), st.integers(0, 400_000)))
def test_size_and_sixteen_pieces_of_a_file_or_url(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    data = random.Random(size).randbytes(size)
    path = tmp_path_factory.mktemp("sampled") / "a.jsonl"
    path.write_bytes(data)
    with fsspec.open("memory://fingerprint/a.jsonl", "wb") as file:
        file.write(data)
    begins = sorted({(size - PIECE) * piece // 15 for piece in range(16)}) if size > PIECE else [0]
    sampled = b"".join(data[begin : begin + PIECE] for begin in begins)
    expected = Fingerprint(size, xxhash.xxh3_128_hexdigest(sampled))
    assert fingerprint(str(path)) == fingerprint("memory://fingerprint/a.jsonl") == expected


def test_a_long_file_is_not_read_whole_and_a_missing_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: reading it whole would take an hour
    before = fingerprint(str(path))
    for place in (0, PIECE - 1, (1 << 40) - 1):
        with path.open("rb+") as file:
            file.seek(place)
            file.write(b"1")
        assert fingerprint(str(path)) != before
        before = fingerprint(str(path))
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
