"""A fingerprint follows from size and sampled bytes, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Fingerprint, fingerprint

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
    if PIECE < size < PIECE + 16:  # pieces may begin at the same byte, and are then one
        assert fingerprint(str(path)).size == size
    else:
        assert fingerprint(str(path)) == expected


def test_any_byte_of_a_short_file_and_the_ends_of_a_long_one_count(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for size, places in (
        (200_000, range(0, 200_000, 997)),
        (10_000_000, [0, PIECE - 1, 9_999_999, 10_000_000 - PIECE]),
    ):
        data = bytearray(size)
        path.write_bytes(data)
        before = fingerprint(str(path))
        for place in places:
            data[place] = 1
            path.write_bytes(data)
            assert fingerprint(str(path)) != before, place
            data[place] = 0


def test_a_long_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: reading it whole would take an hour
    assert fingerprint(str(path)).size == 1 << 40


def test_the_same_from_a_url(tmp_path: Path) -> None:
    import fsspec

    data = bytes(range(256)) * 3000
    (tmp_path / "a.jsonl").write_bytes(data)
    with fsspec.open("memory://fingerprint/a.jsonl", "wb") as file:
        file.write(data)
    assert fingerprint("memory://fingerprint/a.jsonl") == fingerprint(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("path", ["no/such.jsonl", "memory://no/such.jsonl"])
def test_what_is_not_there(path: str) -> None:
    with pytest.raises(PilekitError, match=r"such\.jsonl: no such file"):
        fingerprint(path)
