"""`packing="concat"`: documents one after another, cut at the row's edge, without padding."""

from __future__ import annotations

import numpy as np

from pilekit.stream.pack.rows import Int64, Rows


def concat(lengths: Int64, seq_len: int, first_begin: int = 0, last: bool = False) -> Rows:
    """Full rows of the documents' concatenated tokens, without the first `first_begin`; with `last`, also the rest.

    lengths      int64 [documents], EOD counted
    first_begin  tokens of the first document that are in earlier rows

    Tokens after the last full row are in no row: the caller keeps them for the next call, or passes `last`.
    """
    ends = np.cumsum(lengths) - first_begin
    total = int(ends[-1]) if len(ends) else 0
    used = total if last else total - total % seq_len
    edges = np.append(np.arange(0, used, seq_len), used)
    borders = np.union1d(edges, ends[(ends > 0) & (ends < used)])
    at, length = borders[:-1], np.diff(borders)
    document = np.searchsorted(ends, at, side="right")  # the first document that ends after `at`, so never an empty one
    begin = at - (ends - lengths)[document]
    return Rows(document, begin, length, np.searchsorted(at, edges) if used else np.zeros(1, np.int64))


def unused(lengths: Int64, used: int) -> tuple[int, int]:
    """(document, begin): the place in the concatenated tokens after the first `used`."""
    ends = np.cumsum(lengths)
    document = int(np.searchsorted(ends, used, side="right"))
    return document, used - (int(ends[document - 1]) if document else 0)
