from __future__ import annotations

import click
import pytest

from pilekit.cli.byte_size import ByteSize


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        ("1MiB", 1 << 20),
        ("512KiB", 512 << 10),
        ("512 kib", 512 << 10),
        ("4M", 4 << 20),
        ("4m", 4 << 20),
        ("1G", 1 << 30),
        ("1.5MiB", 3 << 19),
        ("1MB", 1_000_000),
        ("64kB", 64_000),
        ("65536", 65536),
        ("65536B", 65536),
        (65536, 65536),
    ],
)
def test_sizes_as_people_type_them(typed: object, size: int) -> None:
    assert ByteSize(4096, 1 << 30).convert(typed, None, None) == size


@pytest.mark.parametrize(
    "typed", ["", "MiB", "-1MiB", "1 MiB 2", "1TiB", "1,5M", "0x10", "1e6", "١M", "9" * 40, "\x1b[2J"]
)
def test_what_is_no_size(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size such as 1MiB") as raised:
        ByteSize(0, 1 << 30).convert(typed, None, None)
    assert "\x1b" not in raised.value.message


@pytest.mark.parametrize("typed", ["4095", "3KiB", "1.1GiB", "999999999999G"])
def test_sizes_out_of_range(typed: str) -> None:
    with pytest.raises(click.BadParameter, match=f"{typed} is not in the range from 4KiB to 1GiB"):
        ByteSize(4096, 1 << 30).convert(typed, None, None)
