"""`packing="none"`: each piece of a document is a row of its own."""

from __future__ import annotations

import numpy as np

from pilekit.stream.pack.rows import Int64, Rows, pieces


def separate(lengths: Int64, seq_len: int) -> Rows:
    """One row for each piece: documents longer than `seq_len` give full rows and one for the rest.

    lengths  int64 [documents], EOD counted; a document of length 0 has no row
    """
    document, begin, length = pieces(lengths, seq_len)
    return Rows(document, begin, length, np.arange(len(document) + 1))
