"""`Counts`: documents, bytes, sizes and tokens per subset, and hashes of texts where copies are asked for.

Counting must cost little beside reading, so the documents of a block are counted with a handful of numpy calls.

Nothing here grows with the shard but `TextHashes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.shards.index.document_rows import DocumentRows
from pilekit.shards.read.damage import SkippedLines
from pilekit.stats.histogram import BINS, bin_of


class _Groups(dict[str, int]):
    """Label -> its number, counted up from 0 in the order of first occurrence."""

    def __missing__(self, label: str) -> int:
        if len(self) == MAX_SUBSETS:
            raise too_many_subsets(MAX_SUBSETS)
        self[label] = number = len(self)
        return number


@dataclass(slots=True)
class Counts:
    """Counts per group; a group is the documents of one label, row i of each array that of the i-th label of `groups`.

    bytes     UTF-8 bytes of text, int64 [groups or more]
    lengths   histogram of the documents' bytes, int64 [groups or more, BINS]
    tokens    int64 [groups or more], EOD not counted
    skipped   the bad lines passed over
    """

    groups: _Groups = field(default_factory=_Groups)
    bytes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(32, dtype=np.int64))
    lengths: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((32, BINS), dtype=np.int64))
    tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(32, dtype=np.int64))
    skipped: SkippedLines = field(default_factory=SkippedLines)

    def rows(self, labels: list[str]) -> npt.NDArray[np.intp]:
        """The row of each label, intp [labels]; makes rows for new ones."""
        rows = np.fromiter(map(self.groups.__getitem__, labels), np.intp, len(labels))
        while len(self.groups) > len(self.bytes):
            self.bytes = np.concatenate([self.bytes, np.zeros_like(self.bytes)])
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
            self.lengths = np.concatenate([self.lengths, np.zeros_like(self.lengths)])
        return rows

    def add(self, rows: npt.NDArray[np.intp], sizes: npt.NDArray[np.int64]) -> None:
        """Count documents: the row and the UTF-8 bytes of each, [documents]."""
        np.add.at(self.bytes, rows, sizes)
        np.add.at(self.lengths.reshape(-1), rows * BINS + bin_of(sizes), 1)

    def merge(self, other: Counts) -> npt.NDArray[np.intp]:
        """Add another shard's counts; returns this object's row for each row of the other."""
        rows = self.rows(list(other.groups))
        count = len(rows)
        self.bytes[rows] += other.bytes[:count]
        self.tokens[rows] += other.tokens[:count]
        self.lengths[rows] += other.lengths[:count]
        self.skipped.merge(other.skipped)
        return rows


@dataclass(slots=True)
class TextHashes:
    """The 64-bit hashes of a shard's texts in order, and each one's row in the shard's counts; an entry per batch."""

    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    rows: list[npt.NDArray[np.int16]] = field(default_factory=list)

    def drain(self) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]]:
        """(hashes, rows) of each batch in order, forgetting each: what is drained is kept in another form."""
        self.hashes.reverse()
        self.rows.reverse()
        while self.hashes:
            yield self.hashes.pop(), self.rows.pop()


def count_rows(
    rows: DocumentRows, counts: Counts, texts: TextHashes | None = None, subsets: Collection[str] | None = None
) -> npt.NDArray[np.intp]:
    """Count documents into `counts`, and their hashes into `texts` where given; only those of `subsets` if given.

    Returns the row of each document in `counts`, -1 for documents of other subsets.
    """
    occur = np.flatnonzero(np.bincount(rows.codes, minlength=len(rows.labels)))
    wanted = [code for code in occur.tolist() if subsets is None or rows.labels[code] in subsets]
    row_of = np.full(len(rows.labels), -1)
    row_of[wanted] = counts.rows([rows.labels[code] for code in wanted])
    found = row_of[rows.codes]
    chosen = np.flatnonzero(found >= 0)
    counts.add(found[chosen], rows.text_bytes[chosen])
    if texts is not None:
        texts.hashes.append(rows.text_hashes[chosen])
        texts.rows.append(found[chosen].astype(np.int16))
    return found
