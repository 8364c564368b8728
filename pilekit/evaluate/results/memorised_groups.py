"""What may be known of a scored document beside its subset, and the classes in which `memorised` counts its sequences.

    copies              1  2  3-4  5-8  9-16 ...                 not compared
    times_seen          0  1  2  3-4  5-8  9-16 ...
    steps_since_seen    0-9  10-29  30-99  100-299  300-999 ...  never

What a name stands for, and the classes of it, is in `GROUPS`. A document of which it is not known has the value `NONE`,
and a class of its own, which comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

NONE = -1

Facts = Mapping[str, Int64]
"""By a name of `GROUPS`, a number of each scored document, int64 [documents]."""


def _doubling(value: int) -> tuple[int, int]:
    """1, 2, 3 to 4, 5 to 8: each class ends at a power of 2."""
    last = 1 << (value - 1).bit_length() if value else 0
    return (last // 2 + 1 if value else 0), last


def _tripling(value: int) -> tuple[int, int]:
    """0 to 9, 10 to 29, 30 to 99: each class is about three times as wide as the one before."""
    if value < 10:
        return 0, 9
    power = 10 ** (len(str(value)) - 1)
    return (power, 3 * power - 1) if value < 3 * power else (3 * power, 10 * power - 1)


class Group(NamedTuple):
    """Documents by one fact.

    title      of the column in a table
    axis       the same in a figure
    none       the class of documents without a value
    class_of   the least and the largest number in the class of a number
    """

    title: str
    axis: str
    none: str
    class_of: Callable[[int], tuple[int, int]]

    def name(self, value: int) -> str:
        """The class of a number, as `3-4`."""
        if value == NONE:
            return self.none
        first, last = self.class_of(value)
        return f"{first}" if first == last else f"{first}-{last}"

    def place(self, name: str) -> float:
        """The place of a class, by its name, among the others."""
        return float("inf") if name == self.none else int(name.partition("-")[0])


GROUPS = {
    "copies": Group("Copies", "copies of the document", "not compared", _doubling),
    "times_seen": Group("Times\nseen", "times that the run saw the document", "not known", _doubling),
    "steps_since_seen": Group("Steps since\nseen", "steps since the run saw the document", "never", _tripling),
}
"""The groups of `Memorised.groups`.

copies             exact and near copies of the document in a finished dedup, itself included
times_seen         how often a run began the document
steps_since_seen   steps from the last one that had tokens of the document to the run's newest
"""


def shown_class(name: str) -> str:
    """The name of a class for people, as `1,000–2,999`."""
    ends = name.split("-")
    return "–".join(f"{int(end):,}" for end in ends) if all(end.isdecimal() for end in ends) else name
