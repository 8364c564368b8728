"""`LaneDocuments`: some documents of a lane, each at a known place; and `LaneSource`, which reads them.

A lane is a sequence of documents, divided into units. A place in it is (position, document): the unit, and the number
of documents before the place in the unit's order, counted before repeats, filters and bad lines drop any. So a place
does not depend on dropped documents, and reading can resume at every place.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]
"""Documents of a lane, int64 [n, 6]. (Joining and indexing structured arrays takes several times as long.) Columns:

POSITION, ORDER  the unit, and the document's number in the unit's order. The place after it is (position, order + 1)
SHARD, NUMBER    index into the corpus's shards, and line number from 0
SUBSET           the id of its subset
SKIPPED          bad lines skipped before it
"""

POSITION, ORDER, SHARD, NUMBER, SUBSET, SKIPPED = range(6)


def document_table(
    count: int, *, position: Any = 0, order: Any = 0, shard: Any = 0, number: Any = 0, subset: Any = 0, skipped: Any = 0
) -> Table:
    """A table of `count` documents, from columns or single values."""
    table = np.empty((count, 6), np.int64)
    for column, values in enumerate((position, order, shard, number, subset, skipped)):
        table[:, column] = values
    return table


@dataclass(frozen=True)
class LaneDocuments:
    """Some documents of one unit of a lane, in the unit's order. There may be none.

    table      [n], with increasing orders
    texts      list of str, [n]; of documents in token files, their `StoredIds`; for a stream of untokenized documents,
               list of `Document`
    """

    table: Table
    texts: Sequence[Any]

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, begin: int, end: int) -> LaneDocuments:
        """Documents `begin` .. `end`."""
        return LaneDocuments(self.table[begin:end], self.texts[begin:end])


class LaneSource(Protocol):
    """How a plan reads its lanes."""

    def documents(self, lane: int, position: int, document: int) -> Generator[LaneDocuments, None, None]:
        """The lane's documents from this place on: endless, or in a finite pass up to its end.

        Closing the generator closes the files that it has opened.
        """
        ...
