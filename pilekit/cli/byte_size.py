"""Sizes as people type them on the command line: `1MiB`, `512KiB`, `4M`, `1048576`."""

from __future__ import annotations

import re
from decimal import Decimal

import click

_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BYTES |= {f"{letter}ib": _BYTES[letter] for letter in "kmg"}
_BYTES |= {"kb": 10**3, "mb": 10**6, "gb": 10**9}


class ByteSize(click.ParamType):
    """A number of bytes from `smallest` to `largest`: K or KiB, M, G are powers of 1024; KB, MB, GB powers of 1000."""

    name = "size"

    def __init__(self, smallest: int, largest: int):
        self.smallest, self.largest = smallest, largest

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes that a text or a number means; wrong usage if it means none."""
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([a-z]*)", str(value).lower())
        if match is None or match[2] not in _BYTES:
            self.fail(f"{str(value)!r} is not a size such as 1MiB, 512KiB, 4M or 1048576", param, ctx)
        size = int(Decimal(match[1]) * _BYTES[match[2]])
        if not self.smallest <= size <= self.largest:
            self.fail(f"{value} is not in the range from {_short(self.smallest)} to {_short(self.largest)}", param, ctx)
        return size


def _short(size: int) -> str:
    """A size in the largest binary unit of which it is a whole number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size % _BYTES[unit.lower()] == 0:
            return f"{size // _BYTES[unit.lower()]}{unit}"
    return str(size)
