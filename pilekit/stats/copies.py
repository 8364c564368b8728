"""Which documents repeat a text that came before, from 64-bit hashes of the texts.

The hashes seen so far are kept as sorted arrays, one per value of the hash's top byte: 8 bytes for each distinct text
and nothing beside. New hashes wait until they are worth a pass, an eighth of what is there, because a pass copies
everything; it goes one array at a time, so the copy is never more than 1/256 of the whole. In all that is below 12
bytes a document. (A Python set of integers takes 70, a hash table with room to grow 12 to 24.)

Two different texts share a hash with probability 2^-64: with the Pile's 210 million documents, the chance that even one
document is taken for a copy that is none is about 1 in 800.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ARRAYS = 256
_FIRST_OF_ARRAY = np.arange(_ARRAYS, dtype=np.uint64) << np.uint64(56)
_WORTH_A_PASS = 1 << 20


class CopyCounter:
    """Counts, per group, the hashes that were given before; the order in which they are given is the corpus order."""

    def __init__(self) -> None:
        self._seen = [np.empty(0, dtype=np.uint64) for _ in range(_ARRAYS)]
        self._distinct = 0
        self._waiting: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]] = []
        self._waiting_count = 0
        self._copies = np.zeros(0, dtype=np.int64)

    def add(self, hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int32]) -> None:
        """Take the next hashes, uint64 [documents], and the group of each, int32 [documents], >= 0."""
        if len(hashes):
            self._waiting.append((hashes, groups))
            self._waiting_count += len(hashes)
            if self._waiting_count >= max(_WORTH_A_PASS, self._distinct // 8):
                self._pass()

    def copies(self, groups: int) -> npt.NDArray[np.int64]:
        """How many hashes of each group had occurred before, in any group; int64 [groups]."""
        self._pass()
        counts = np.zeros(groups, dtype=np.int64)
        counts[: len(self._copies)] = self._copies
        return counts

    def _pass(self) -> None:
        if not self._waiting:
            return
        hashes = np.concatenate([one for one, _ in self._waiting])
        groups = np.concatenate([one for _, one in self._waiting])
        self._waiting, self._waiting_count = [], 0
        order = np.argsort(hashes)  # a stable sort takes five times as long
        hashes = hashes[order]
        copy = np.zeros(len(hashes), dtype=np.bool_)
        np.equal(hashes[1:], hashes[:-1], out=copy[1:])
        repeated = copy.copy()
        repeated[:-1] |= copy[1:]
        # Of equal hashes the first given comes first.
        order[repeated] = order[repeated][np.lexsort((order[repeated], hashes[repeated]))]
        groups = groups[order]
        del order
        ends = [*np.searchsorted(hashes, _FIRST_OF_ARRAY).tolist(), len(hashes)]
        for number, seen in enumerate(self._seen):
            part = slice(ends[number], ends[number + 1])
            at = np.searchsorted(seen, hashes[part])
            if len(seen):
                copy[part] |= seen[np.minimum(at, len(seen) - 1)] == hashes[part]
            new = ~copy[part]
            self._seen[number] = np.insert(seen, at[new], hashes[part][new])
        self._distinct += int(np.count_nonzero(~copy))
        counts = np.bincount(groups[copy], minlength=len(self._copies))
        counts[: len(self._copies)] += self._copies
        self._copies = counts.astype(np.int64, copy=False)
