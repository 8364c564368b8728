"""Keep masks: what is written is read, what was damaged is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError
from pilekit.shards.fingerprint import Fingerprint
from pilekit.shards.keep_mask import read_mask, write_mask

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
    # As documented, for those who read it without pilekit.
    header, _, bits = path.read_bytes().partition(b"\n")
    said = json.loads(header)
    assert {name: said[name] for name in ("format", "kind", "size", "sample")} == {
        "format": 1,
        "kind": "keep mask",
        "size": 123,
        "sample": "ab" * 16,
    }
    assert [bits[i // 8] >> i % 8 & 1 for i in range(len(kept))] == kept
    assert len(bits) == -(-len(kept) // 8)


def test_it_fits_one_shard(tmp_path: Path) -> None:
    write_mask(tmp_path / "mask", "a", OF, np.ones(3, dtype=np.bool_))
    mask = read_mask(tmp_path / "mask")
    assert mask.fits(OF)
    assert not mask.fits(Fingerprint(124, OF.sample))
    assert not mask.fits(Fingerprint(123, "cd" * 16))


def test_damage_anywhere_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mask"
    write_mask(path, "a", OF, np.arange(40) % 3 == 0)
    whole = path.read_bytes()
    begin = whole.index(b"\n") + 1
    for wrong in [
        *(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(begin, len(whole))),
        whole[:-1],
        whole + b"\0",
        whole[:begin],
        whole[: begin - 5],
        whole[begin:],
        b"",
        b"\xff" * 100,
        b"[]\n",
    ]:
        path.write_bytes(wrong)
        with pytest.raises(PilekitError, match=r"mask: is (damaged|not a keep mask)"):
            read_mask(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": 2}, "of format 2, .* reads format 1"),
        ({"kind": "something else"}, "is not a keep mask"),
        ({"lines": -1}, "is not a keep mask"),
        ({"lines": 41}, "damaged"),
        ({"kept": 13}, "damaged"),
        ({"size": "x"}, "is not a keep mask"),
    ],
)
def test_another_header(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    path = tmp_path / "mask"
    write_mask(path, "a", OF, np.arange(40) % 3 == 0)
    header, _, bits = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(header), **change}).encode() + b"\n" + bits)
    with pytest.raises(PilekitError, match=match):
        read_mask(path)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "nu\0ll"):
        with pytest.raises(PilekitError, match="cannot be read"):
            read_mask(path)
