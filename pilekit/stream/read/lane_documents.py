"""`LaneDocuments`: some documents of a lane, each at a known place; and `LaneSource`, which reads them.

A lane is a sequence of documents, divided into units. A place in it is (position, document): the unit, and the number
of documents before the place in the unit's order, counted before repeats, filters and bad lines drop any. So a place
does not depend on dropped documents, and reading can resume at every place.
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
    orders     int64 [n], increasing: each document's number in the unit's order. The place after document i is
               (position, orders[i] + 1)
    texts      list of str, [n]
    subsets    list of str, [n]; `(none)` for a document without a label
    shards     int64 [n]; index into the corpus's shards
    numbers    int64 [n]; line numbers from 0
    skipped    int64 [n]: bad lines skipped before each document
    records    the documents' lines as JSON, [n], if the source was asked for them; otherwise empty
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
        """The lane's documents from this place on: endless, or in a finite pass up to its end.

        Closing the generator closes the files that it has opened.
        """
        ...
