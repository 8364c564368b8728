"""What a lane reads: `LaneDocuments`, some documents at known places, and `LaneSource`, what gives them.

A lane is an endless sequence of documents, cut into units. Where in it a reader stands is (position, document): which
unit, and how many documents of that unit's own order are behind it, counted before repeats, filters and bad lines drop
any. So a place means the same whatever is dropped, and reading can begin again at each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LaneDocuments:
    """Some documents of one unit of a lane, in the unit's order; there may be none.

    position   the unit they belong to
    order      int64 [n], increasing: each one's number in the unit's order. The place behind document i is
               (position, order[i] + 1)
    texts      list of str, [n]
    subsets    list of str, [n]; `(none)` where a document has no label
    shards     int64 [n]; index into the corpus's shards
    numbers    int64 [n]; line numbers from 0
    skipped    bad lines passed over just before or among them
    records    their lines as JSON, [n], where the source was asked for them
    """

    position: int
    order: Int64
    texts: list[str]
    subsets: list[str]
    shards: Int64
    numbers: Int64
    skipped: int = 0
    records: Sequence[bytes | memoryview] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, begin: int, end: int) -> LaneDocuments:
        """Documents `begin` .. `end`, without their records; bad lines stand before the first document."""
        names = ("order", "texts", "subsets", "shards", "numbers")
        columns = {name: getattr(self, name)[begin:end] for name in names}
        return replace(self, **columns, skipped=0 if begin else self.skipped, records=None)


class LaneSource(Protocol):
    """What a plan is to the lanes: where each begins, and its documents from any place on."""

    def first(self, lane: int) -> int:
        """The position at which the lane begins."""
        ...

    def documents(self, lane: int, position: int, document: int) -> Iterator[LaneDocuments]:
        """The lane's documents from that place on, without end (a finite pass: to its end).

        A document that is dropped is simply not there. Closing the iterator closes what it has opened.
        """
        ...
