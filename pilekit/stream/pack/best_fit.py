"""`packing="best_fit"`: best-fit-decreasing, in time linear in documents and rows.

Pieces go, longest first, each into the open row with the least free space that still holds it; of rows with equal
space, into the one opened first. A document that fits in a row is never cut, nothing is thrown away, and windows of 256
documents of the Pile fill 99.5 % of rows of 2,048.

Lengths are small integers, so nothing is compared: pieces are sorted by counting, and open rows hang in one heap for
each amount of free space, of which a bitmap says which are not empty. A skew heap (two links for each row) keeps the
first-opened row at its root in logarithmic time, however many rows have the same space.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from pilekit.kernels import compiled
from pilekit.stream.pack.rows import Int64, Rows, pieces

_int64 = types.int64
_column = types.Array(types.int64, 1, "C")
_words = types.Array(types.uint64, 1, "C")
_read_only = types.Array(types.int64, 1, "C", readonly=True)


def best_fit(lengths: Int64, seq_len: int) -> Rows:
    """Rows of at most `seq_len` tokens; inside a row, the pieces in the order in which they were put there.

    lengths  int64 [documents], EOD counted. A document longer than a row gives full rows first, then one piece of
             1 to seq_len tokens. Equally long pieces go in the order of (document, begin)
    """
    document, begin, length = pieces(lengths, seq_len)
    piece, start = _pack(length, seq_len)
    return Rows(document[piece], begin[piece], length[piece], start)


@compiled(_int64(_int64, _int64, _column, _column))
def _merged(heap: int, other: int, left: Int64, right: Int64) -> int:
    """The root of two skew heaps made one; -1 is an empty heap. The least row is the root."""
    if heap < 0:
        return other
    if other < 0:
        return heap
    if other < heap:
        heap, other = other, heap
    root = heap
    while True:  # `other` goes into the right branch of `heap`, and the branches change sides
        below = right[heap]
        right[heap] = left[heap]
        if below < 0:
            left[heap] = other
            return root
        if other < below:
            below, other = other, below
        left[heap] = below
        heap = below


@compiled(_int64(_words, _int64))
def _at_least(occupied: npt.NDArray[np.uint64], space: int) -> int:
    """The least free space from `space` on that a row has, or -1."""
    word = space >> 6
    bits = occupied[word] >> np.uint64(space & 63)
    if bits == 0:
        word += 1
        while word < len(occupied) and occupied[word] == 0:
            word += 1
        if word == len(occupied):
            return -1
        bits = occupied[word]
        space = word << 6
    while bits & np.uint64(1) == 0:
        bits >>= np.uint64(1)
        space += 1
    return space


_both = types.UniTuple(_column, 2)  # type: ignore[no-untyped-call]


@compiled(_both(_read_only, _int64))
def _pack(length: Int64, seq_len: int) -> tuple[Int64, Int64]:
    """(piece, start): the pieces row after row, int64 [pieces], and where each row starts, int64 [rows + 1]."""
    count = len(length)
    # Longest first, equal ones as they come: `place[n]` is where the next piece of n tokens goes.
    place = np.zeros(seq_len + 2, np.int64)
    for piece in range(count):
        place[length[piece] - 1] += 1
    total = 0
    for n in range(seq_len, -1, -1):
        total += place[n]
        place[n] = total
    decreasing = np.empty(count, np.int64)
    for piece in range(count):
        at = place[length[piece]]
        decreasing[at] = piece
        place[length[piece]] = at + 1

    heap = np.full(seq_len + 1, -1, np.int64)
    occupied = np.zeros((seq_len >> 6) + 1, np.uint64)
    left = np.full(count, -1, np.int64)
    right = np.full(count, -1, np.int64)
    row_of = np.empty(count, np.int64)
    rows = 0
    for turn in range(count):
        piece = decreasing[turn]
        space = _at_least(occupied, length[piece])
        if space < 0:
            row, space = rows, seq_len
            rows += 1
        else:
            row = heap[space]
            heap[space] = _merged(left[row], right[row], left, right)
            if heap[space] < 0:
                occupied[space >> 6] &= ~(np.uint64(1) << np.uint64(space & 63))
            left[row] = -1
            right[row] = -1
        row_of[piece] = row
        space -= length[piece]
        if space > 0:
            heap[space] = _merged(heap[space], row, left, right)
            occupied[space >> 6] |= np.uint64(1) << np.uint64(space & 63)

    start = np.zeros(rows + 1, np.int64)
    for piece in range(count):
        start[row_of[piece] + 1] += 1
    for row in range(rows):
        start[row + 1] += start[row]
    following = start[:-1].copy()
    by_row = np.empty(count, np.int64)
    for turn in range(count):
        piece = decreasing[turn]
        row = row_of[piece]
        by_row[following[row]] = piece
        following[row] += 1
    return by_row, start
