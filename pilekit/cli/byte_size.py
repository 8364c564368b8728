"""Sizes as people type them on the command line: `200MB`, `1.5 GB`, `64MiB`, `1000000`."""

from __future__ import annotations

import re
from decimal import Decimal

import click

from pilekit.errors import visible

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class ByteSize(click.ParamType[int]):
    """A number of bytes from `smallest` to `largest`: K, M, G, T are powers of 1000, Ki, Mi, Gi, Ti powers of 1024."""

    name = "size"

    def __init__(self, smallest: int = 1, largest: int = 1 << 60):
        self.smallest, self.largest = smallest, largest

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes that a text or a number means; wrong usage if it means none."""
        shown = visible(str(value), 40)
        match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([kmgt]i?)?b?", str(value).strip().lower())
        if match is None:
            self.fail(f"'{shown}' is no size; write it like 200MB, 1.5GB or 64MiB", param, ctx)
        size = int(Decimal(match[1]) * _UNITS[match[2] or ""])
        if not self.smallest <= size <= self.largest:
            self.fail(f"{shown} is not in the range from {_short(self.smallest)} to {_short(self.largest)}", param, ctx)
        return size


def _short(size: int) -> str:
    """A size in the largest unit of which it is a whole number."""
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=lambda unit: _UNITS[unit])
    return f"{size // _UNITS[unit]:,}{unit.capitalize()}B"
