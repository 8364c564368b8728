"""`Rows`: the layout of a window's documents in rows, the same type for every packing.

A piece is a run of one document's tokens, its EOD counted. A row is pieces side by side, with padding at its end. A
packing is a function from the documents' lengths to `Rows` and sees no token. So tokens are copied only once, into the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Rows:
    """Rows made of pieces of documents.

    document  int64 [pieces]: the document in its window
    begin     int64 [pieces]: tokens of the document before the piece
    length    int64 [pieces]: tokens, at least 1. A token after the document's last one is its EOD
    start     int64 [rows + 1], from 0: row r is the pieces `start[r]:start[r + 1]`, at least one
    """

    document: Int64
    begin: Int64
    length: Int64
    start: Int64

    def __len__(self) -> int:
        return len(self.start) - 1

    def part(self, begin: int, end: int) -> Rows:
        """Rows `begin` .. `end`."""
        start = self.start[begin : end + 1]
        pieces = slice(start[0], start[-1])
        return Rows(self.document[pieces], self.begin[pieces], self.length[pieces], start - start[0])

    def take(self, chosen: Int64) -> Rows:
        """The rows `chosen`, int64 [n], in that order."""
        counts = np.diff(self.start)[chosen]
        start = np.concatenate(([0], np.cumsum(counts)))
        piece = np.arange(start[-1]) + np.repeat(self.start[chosen] - start[:-1], counts)
        return Rows(self.document[piece], self.begin[piece], self.length[piece], start)
