"""`DrawnParts`: the parts of documents that a lane draws for a window, and the window's documents that they make.

Each part is a row of numbers that `draw` writes: of what was read it comes (its *source*: a few documents of one
subset), and where it stands there. When the window is full, its tokens are copied once, into the order in which they
were drawn: from what the tokenizer gave, or straight from the mapped token files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, counted
from pilekit.stream.order.draws import Draws
from pilekit.stream.pack.draw_kernel import BEGIN, DOCUMENT, GOES_ON, LENGTH, PARTS, ROWS, SOURCE
from pilekit.stream.pack.window import Layout, TokenizedDocuments
from pilekit.stream.read.lane_documents import ORDER, POSITION, LaneDocuments
from pilekit.tokenize.files.stored_ids import StoredIds, copied, join_stored

_MOST_PARTS = 1 << 18
"""A row that is not full after so many parts of documents, beyond those of a window, has nothing but empty texts."""


class DrawnParts:
    """The parts of a window, in the order in which they were drawn. The arrays are as in `draw`.

    sources    what was read of each subset when the window begins; texts are `StoredIds`

    source_of  int64 [subsets]: the number of what was read last of each subset
    places     with "concat": the place after each row, in arrays int64 [rows, 4 + 3 subsets]
    """

    def __init__(self, sources: Sequence[LaneDocuments], layout: Layout) -> None:
        subsets, rows = len(sources), layout.most_tokens // layout.seq_len + 2
        self._layout, self._usual = layout, layout.window + rows
        self.has, self.parts = np.zeros(5, np.int64), np.empty((self._usual, 5), np.int64)
        kept_rows = rows if layout.packing == "concat" else 0
        self.row_places = np.zeros((kept_rows, 1 + 2 * subsets), np.int64)
        self.row_turns = np.empty((kept_rows, subsets))
        self.places: list[Int64] = []
        self._sources, self.source_of = list(sources), np.arange(subsets)
        self._noted_rows = 0

    def add_source(self, subset: int, documents: LaneDocuments) -> None:
        """From now on, parts of this subset come from `documents`."""
        self.source_of[subset] = len(self._sources)
        self._sources.append(documents)

    def note_rows(self, draws: Draws) -> None:
        """Note under which shares the rows were filled that are full since the last call."""
        first, last = self._noted_rows, int(self.has[ROWS])
        if first < last:
            fixed = np.zeros((last - first, 4), np.int64)
            fixed[:, 1], fixed[:, 3] = self.row_places[first:last, 0], draws.basis
            bits = draws.record(self.row_turns[first:last]).view(np.int64)
            self.places.append(np.hstack([fixed, self.row_places[first:last, 1:], bits]))
            self._noted_rows = last

    def make_room(self) -> None:
        """Double the room for parts; PilekitError where the texts of a row must be empty."""
        if len(self.parts) > self._usual + self._layout.seq_len + _MOST_PARTS:
            raise PilekitError(
                f"no row in {counted(len(self.parts), 'document')}: the texts are empty; give append_eod=True, another "
                "packing or other documents"
            )
        self.parts = np.concatenate([self.parts, np.empty_like(self.parts)])

    def joined(self, before: int) -> tuple[TokenizedDocuments, int]:
        """The parts as documents, and the largest id; `before` parts of the lane were drawn before them."""
        count = int(self.has[PARTS])
        parts = self.parts[:count]
        stored = join_stored([cast(StoredIds, source.texts) for source in self._sources])
        first = np.cumsum([0, *map(len, self._sources)])[:-1]
        rows = first[parts[:, SOURCE]] + parts[:, DOCUMENT]
        lengths = parts[:, LENGTH] - self._layout.append_eod * (1 - parts[:, GOES_ON])
        begins = stored.begins[rows] + parts[:, BEGIN]
        ids, offsets, largest = copied(StoredIds(stored.mapped, stored.arrays, stored.sources[rows], begins, lengths))
        table = np.concatenate([source.table for source in self._sources])[rows]
        table[:, POSITION], table[:, ORDER] = 0, np.arange(before, before + count)
        return TokenizedDocuments(ids, offsets, table, cut=parts[:, [BEGIN, GOES_ON]]), largest
