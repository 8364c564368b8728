"""`LaneDocuments`: some documents of a lane, each at a known place; and `LaneSource`, what reads them.

A lane is a sequence of documents, cut into units. A place in it is (position, document): which unit, and how many
documents of that unit's own order are behind, counted before repeats, filters and bad lines drop any. So a place means
the same whatever is dropped, and reading can resume at each of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LaneDocuments:
    """Some documents of one unit of a lane, in the unit's order. There may be none.

    position   the unit
    orders     int64 [n], increasing: the number of each in the unit's order. The place behind document i is
               (position, orders[i] + 1)
    texts      list of str, [n]
    subsets    list of str, [n]; `(none)` where a document has no label
    shards     int64 [n]; index into the corpus's shards
    numbers    int64 [n]; line numbers from 0
    skipped    int64 [n]: bad lines passed over before each
    records    their lines as JSON, [n], where the source was asked for them; else empty
    """

    position: int
    orders: Int64
    texts: list[str]
    subsets: list[str]
    shards: Int64
    numbers: Int64
    skipped: Int64
    records: Sequence[bytes | memoryview] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, begin: int, end: int) -> LaneDocuments:
        """Documents `begin` .. `end`."""
        names = ("orders", "texts", "subsets", "shards", "numbers", "skipped", "records")
        return replace(self, **{name: getattr(self, name)[begin:end] for name in names})


class LaneSource(Protocol):
    """How a plan reads its lanes."""

    def documents(self, lane: int, position: int, document: int) -> Generator[LaneDocuments, None, None]:
        """The lane's documents from that place on, without end; in a finite pass to its end.

        Closing the generator closes what it has opened.
        """
        ...
