"""Documents that repeat the text of an earlier document, found by 64-bit hashes of the texts.

A document takes 10 bytes: its hash and its group. (A Python set of integers takes 70.) They are collected in parts of a
million, each sorted by the hash's top byte. At the end the 256 values of that byte are processed one by one, so nothing
large is copied.

Two different texts share a hash with probability 2^-64: with the Pile's 210 million documents, the chance of a single
wrong copy is about 1 in 800.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_PART = 1 << 20
_TOP_BYTES = 256


class CopyCounter:
    """Counts, per group, the hashes that occurred before; they must come in the order of the corpus."""

    def __init__(self) -> None:
        # Hashes by their top byte, within a byte in the order given; the groups; where each byte's hashes begin.
        self._parts: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16], npt.NDArray[np.int64]]] = []
        self._waiting: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]] = []
        self._waiting_count = 0

    def add(self, hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int16]) -> None:
        """Take the next hashes, uint64 [documents], and the group of each, int16 [documents], >= 0."""
        self._waiting.append((hashes, groups))
        self._waiting_count += len(hashes)
        if self._waiting_count >= _PART:
            self._sort()

    def copies(self, groups: int) -> npt.NDArray[np.int64]:
        """How many hashes of each group had occurred before, in any group; int64 [groups]."""
        self._sort()
        counts = np.zeros(groups, dtype=np.int64)
        for byte in range(_TOP_BYTES if self._parts else 0):
            hashes = np.concatenate([part[ends[byte] : ends[byte + 1]] for part, _, ends in self._parts])
            of_group = np.concatenate([part[ends[byte] : ends[byte + 1]] for _, part, ends in self._parts])
            order = np.argsort(hashes)  # A stable sort takes five times as long, and only the first of a run matters.
            ordered = hashes[order]
            begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
            firsts = np.minimum.reduceat(order, begins) if len(begins) else order
            counts += np.bincount(of_group, minlength=groups) - np.bincount(of_group[firsts], minlength=groups)
        return counts

    def _sort(self) -> None:
        if self._waiting_count:
            hashes = np.concatenate([some for some, _ in self._waiting])
            groups = np.concatenate([some for _, some in self._waiting])
            top = (hashes >> np.uint64(56)).astype(np.uint8)
            order = np.argsort(top, kind="stable")
            ends = np.searchsorted(top[order], np.arange(_TOP_BYTES + 1))
            self._parts.append((hashes[order], groups[order], ends))
        self._waiting, self._waiting_count = [], 0
