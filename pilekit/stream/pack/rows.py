"""`Rows`: how the documents of a window are laid out in rows, whatever the packing.

A piece is a run of one document's tokens, EOD counted; a row is pieces side by side, the rest of it padding. A packing
(best_fit.py, separate.py, concat.py) is a function from the documents' lengths to `Rows` and sees no token. So a
window's rows can be computed, ordered and handed out one at a time, and tokens are copied once, into their batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pilekit.stream.order.shuffle import mix

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Rows:
    """Rows made of pieces of documents.

    document  int64 [pieces]: the document in its window
    begin     int64 [pieces]: tokens of the document that stand before the piece
    length    int64 [pieces]: tokens, at least 1; one after the document's last token is its EOD
    start     int64 [rows + 1], from 0: row r is the pieces `start[r]:start[r + 1]`, at least one, from its left end on
    """

    document: Int64
    begin: Int64
    length: Int64
    start: Int64

    def __len__(self) -> int:
        return len(self.start) - 1


def pieces(lengths: Int64, seq_len: int) -> tuple[Int64, Int64, Int64]:
    """(document, begin, length), int64 [pieces]: documents of `lengths` cut where they are longer than a row.

    Full rows first, the rest last, of 1 to seq_len tokens; a document without tokens has no piece.
    """
    counts = -(-lengths // seq_len)
    document = np.repeat(np.arange(len(lengths)), counts)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * seq_len
    return document, begin, np.minimum(lengths[document] - begin, seq_len)


def row_keys(rows: Rows, keys: UInt64) -> UInt64:
    """uint64 [rows]: each row's key, a hash of its first piece.

    keys  uint64 [documents]: a key for each document of the window, unique to this use of it
    """
    first = rows.start[:-1]
    return mix(keys[rows.document[first]], rows.begin[first])


def taken(rows: Rows, chosen: Int64) -> Rows:
    """The rows `chosen`, int64 [n], in that order."""
    counts = np.diff(rows.start)[chosen]
    start = np.concatenate(([0], np.cumsum(counts)))
    piece = np.arange(start[-1]) + np.repeat(rows.start[chosen] - start[:-1], counts)
    return Rows(rows.document[piece], rows.begin[piece], rows.length[piece], start)


def ordered(rows: Rows, keys: UInt64, *, by_length: bool = False) -> tuple[Rows, UInt64]:
    """(rows, row keys) in increasing order of the keys; with `by_length`, of (tokens in the row, key).

    Best fit makes the fullest rows first, so rows must be shuffled; this order depends on nothing but the rows.
    """
    found = row_keys(rows, keys)
    if by_length and len(rows):
        order = np.lexsort((found, np.add.reduceat(rows.length, rows.start[:-1])))
    else:
        order = np.argsort(found, kind="stable")
    return taken(rows, order), found[order]
