"""A fingerprint depends on size and sampled bytes only; a keep mask is read as written, and damage is an error."""

from __future__ import annotations

import json
import random
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus import Shard
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint, fingerprint, inputs_for
from pilekit.shards.keep_mask import MASK, MaskHeader, read_mask, write_mask

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


OF = Fingerprint(123, "ab" * 16)


@given(st.lists(st.booleans(), max_size=70))
def test_a_mask_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, kept: list[bool]) -> None:
    path = tmp_path_factory.mktemp("mask") / "train" / "00.jsonl.mask"
    write_mask(path, "train/00.jsonl", OF, np.array(kept, dtype=np.bool_))
    mask = read_mask(path)
    assert (mask.header.shard, mask.header.lines, mask.header.kept) == ("train/00.jsonl", len(kept), sum(kept))
    assert mask.unpacked().tolist() == kept
    numbers = np.array([*range(len(kept)), len(kept), len(kept) + 1, 10**12])
    assert mask.keeps(numbers).tolist() == [*kept, False, False, False]
    assert mask.keeps(numbers[:0]).tolist() == []
    assert [mask.fits(of) for of in (OF, Fingerprint(124, OF.sample), Fingerprint(123, "cd"))] == [True, False, False]
    # The documented layout, for readers without pilekit.
    header, _, bits = path.read_bytes().partition(b"\n")
    assert json.loads(header).items() >= {"format": 2, "kind": "keep mask", "size": 123, "sample": "ab" * 16}.items()
    assert [bits[i // 8] >> i % 8 & 1 for i in range(len(kept))] == kept
    assert len(bits) == -(-len(kept) // 8)


def test_a_sealed_mask_with_impossible_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask"
    bits = np.packbits(np.arange(40) % 3 == 0, bitorder="little")
    for lines, kept in ((41, 14), (40, 13), (-1, 14)):
        header = MaskHeader(format=2, shard="a", size=OF.size, sample=OF.sample, lines=lines, kept=kept)
        MASK.write(path, header, bits)
        with pytest.raises(PilekitError, match=r"mask: is damaged .*; run `pilekit dedup` again"):
            read_mask(path)
    for missing in (tmp_path, tmp_path / "none", tmp_path / "nu\0ll"):
        with pytest.raises(PilekitError, match="cannot be read"):
            read_mask(missing)
