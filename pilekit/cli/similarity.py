"""Similarities as arguments: numbers from 0 to 1, and no NaN, which click's own range lets pass."""

from __future__ import annotations

import math
from typing import Any

import click


class Similarity(click.FloatRange):
    """A number from 0, or above it, to 1."""

    def __init__(self, *, above_zero: bool = False):
        super().__init__(0, 1, min_open=above_zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; wrong usage if it is none, or out of the range."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{number} is not in the range {self._describe_range()}.", param, ctx)
        return number
