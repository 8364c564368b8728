"""`TextCopies`: how many texts of a corpus are distinct, have copies, and how many copies the most frequent have.

Hashes of all texts are sorted, on disk where memory does not hold them, and the lengths of runs of equal hashes are
counted. Two different texts share a hash with probability 2^-64, as in counting.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.sort.external_sort import RowSort, Table

Int64 = npt.NDArray[np.int64]


class CopyCounts(NamedTuple):
    """Counts of equal texts.

    distinct   different texts
    twins      documents whose text another document has too
    clusters   texts that several documents have
    frequent   the documents of each of the most frequent texts, decreasing; int64
    """

    distinct: int
    twins: int
    clusters: int
    frequent: Int64


class TextCopies(AbstractContextManager["TextCopies"]):
    """Takes the hashes of texts in any order.

    folder     for hashes that do not fit in memory
    memory     bytes for sorting
    frequent   how many of the most frequent texts are counted
    """

    def __init__(self, folder: Path, memory: int, frequent: int):
        self._sort, self._frequent = RowSort(folder, 1, memory), frequent

    def __exit__(self, *_: object) -> None:
        self._sort.close()

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Take hashes, uint64 [documents]."""
        self._sort.add(hashes[None])

    def counts(self) -> CopyCounts:
        """The counts of all hashes taken; call it once."""
        distinct = twins = clusters = 0
        frequent = np.zeros(0, np.int64)
        for lengths in run_lengths(self._sort.chunks()):
            several = lengths[lengths > 1]
            distinct += len(lengths)
            twins += int(several.sum())
            clusters += len(several)
            frequent = np.sort(np.concatenate([frequent, several]))[::-1][: self._frequent]
        if len(frequent) < self._frequent and distinct > clusters:
            singles = min(self._frequent - len(frequent), distinct - clusters)
            frequent = np.concatenate([frequent, np.ones(singles, np.int64)])
        return CopyCounts(distinct, twins, clusters, frequent)


def run_lengths(tables: Iterable[Table]) -> Iterator[Int64]:
    """The lengths of the runs of equal values in sorted tables of one column; a run may span many tables."""
    open_value, open_length = np.uint64(0), 0
    for table in tables:
        values = table[0]
        if not len(values):
            continue
        begins = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1, [len(values)]])
        lengths = np.diff(begins)
        if open_length and values[0] == open_value:
            lengths[0] += open_length
        elif open_length:
            lengths = np.concatenate([[open_length], lengths])
        open_value, open_length = values[-1], int(lengths[-1])
        yield lengths[:-1]
    if open_length:
        yield np.array([open_length])
