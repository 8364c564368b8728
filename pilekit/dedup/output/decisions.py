"""The removed documents, each with the kept document that it resembles: a row for each id, in a file without a name.

An exact copy follows the document that stands for its text. If that document is kept, the copy is recorded as its exact
copy. If that document is removed, the copy is recorded as a near-duplicate of the same kept document, with the same
similarity.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.match.external_sort import Table
from pilekit.dedup.match.population import Ids, ids_of
from pilekit.dedup.scratch_space import scratch_array

KEPT, EXACT, NEAR = range(3)

_ROW = np.dtype([("reason", "u1"), ("kept", "<u4"), ("similarity", "<f8")])
_OWN = np.uint64(1 << 63)
_AT_A_TIME = 1 << 20

Int64 = npt.NDArray[np.int64]


class Removals(NamedTuple):
    """Some removed documents.

    removed, kept   ids
    similarity      float64, 1 for exact copies
    reason          `EXACT` or `NEAR`
    """

    removed: Int64
    kept: Ids
    similarity: npt.NDArray[np.float64]
    reason: npt.NDArray[np.uint8]


class Decisions:
    """The removed documents and the reasons, for this many documents; `folder` is for scratch files."""

    def __init__(self, documents: int, folder: Path):
        self._rows = scratch_array(folder, _ROW, documents)

    def add_copies(self, pairs: Table) -> None:
        """Take exact copies: (rank of the document that stands for the text, rank of the copy)."""
        own = pairs[1] >= _OWN  # Nothing of an earlier run is removed.
        self._set(ids_of(pairs[1, own]), EXACT, ids_of(pairs[0, own]), np.ones(int(own.sum())))

    def add_near(self, edges: Table) -> None:
        """Take near-duplicates: (rank of a removed document, rank of a kept one, bits of the similarity)."""
        self._set(ids_of(edges[0]), NEAR, ids_of(edges[1]), edges[2].view(np.float64))

    def _set(self, ids: Ids, reason: int, kept: Ids, similarity: npt.NDArray[np.float64]) -> None:
        rows = np.empty(len(ids), dtype=_ROW)
        rows["reason"], rows["kept"], rows["similarity"] = reason, kept, similarity
        self._rows[ids] = rows

    def removed(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether each of these ids is removed."""
        found: npt.NDArray[np.bool_] = self._rows["reason"][begin:end] != KEPT
        return found

    def removals(self, size: int) -> Iterator[Removals]:
        """All removed documents by id, `size` at a time."""
        ids = np.empty(0, dtype=np.int64)
        for begin in range(0, len(self._rows), _AT_A_TIME):
            ids = np.append(ids, begin + np.flatnonzero(self.removed(begin, begin + _AT_A_TIME)))
            while len(ids) >= size:
                yield self._removals(ids[:size])
                ids = ids[size:]
        if len(ids):
            yield self._removals(ids)

    def _removals(self, ids: Int64) -> Removals:
        rows = self._rows[ids]
        copies = np.flatnonzero(rows["reason"] == EXACT)
        keepers = self._rows[rows["kept"][copies]]
        removed_too = keepers["reason"] == NEAR
        rows[copies[removed_too]] = keepers[removed_too]
        if self._rows["reason"][rows["kept"]].any():
            raise ValueError("a document was removed for the sake of a removed one")
        return Removals(ids, rows["kept"], rows["similarity"], rows["reason"])
