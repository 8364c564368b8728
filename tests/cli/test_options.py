from __future__ import annotations

import click
import pytest

from pilekit.cli.options import ByteSize


def test_sizes_as_people_type_them() -> None:
    for typed, size in {
        "200MB": 200_000_000,
        "1.5GB": 1_500_000_000,
        "64MiB": 64 << 20,
        "512 kib": 512 << 10,
        "4Mi": 4 << 20,
        "1.5MiB": 3 << 19,
        "3k": 3_000,
        "1T": 10**12,
        "10b": 10,
    }.items():
        assert ByteSize().convert(typed, None, None) == size
    assert ByteSize().convert(65536, None, None) == 65536


def test_other_texts_are_refused() -> None:
    for typed in (
        "",
        "much",
        "MiB",
        "-5MB",
        "5XB",
        "1 MiB 2",
        "5 0 MB",
        "1,5M",
        "0x10",
        "1e9",
        "١M",
        "9" * 40,
        "\x1b[2J",
    ):
        with pytest.raises(click.BadParameter, match="write it like 200MB") as raised:
            ByteSize().convert(typed, None, None)
        assert "\x1b" not in raised.value.message


def test_sizes_out_of_range() -> None:
    for typed in ("4095", "4kB", "1.1GiB", "99999999999999999999T"):
        with pytest.raises(click.BadParameter, match=f"{typed} is not in the range from 4KiB to 1GiB"):
            ByteSize(4096, 1 << 30).convert(typed, None, None)
    with pytest.raises(click.BadParameter, match="0 is not in the range from 1B to 1,048,576TiB"):
        ByteSize().convert("0", None, None)
