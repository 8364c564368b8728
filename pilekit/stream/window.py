"""`Window`: a lane's next documents, tokenized, and the rows they give.

A window is packed alone: its rows depend on its own documents and on nothing before or after. So a lane's place is the
place of its window's first document and how many of the rows were handed out, and going on there tokenizes one window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pilekit.stream.best_fit import best_fit
from pilekit.stream.concat import concat
from pilekit.stream.rows import Int64, Rows, UInt64, ordered, row_keys
from pilekit.stream.separate import separate

Packing = Literal["best_fit", "concat", "none"]

PACKINGS: tuple[Packing, ...] = ("best_fit", "concat", "none")

MOST_TOKENS = 512 * 1024
"""No further document is taken into a window that has so many tokens, EOD counted, so that its memory is bounded."""


@dataclass(frozen=True)
class Window:
    """Documents and their rows.

    ids         uint32 [tokens], all documents one after another, no EOD among them
    offsets     int64 [documents + 1], from 0: document i is `ids[offsets[i]:offsets[i + 1]]`
    subset_ids  int64 [documents]
    shards      int64 [documents]: index of the shard each comes from
    numbers     int64 [documents]: its number there
    keys        uint64 [documents]: a key for each, unique to this use of it
    rows        `Rows` of these documents
    row_keys    uint64 [rows]
    """

    ids: npt.NDArray[np.uint32]
    offsets: Int64
    subset_ids: Int64
    shards: Int64
    numbers: Int64
    keys: UInt64
    rows: Rows
    row_keys: UInt64


def packed(
    packing: Packing,
    seq_len: int,
    append_eod: bool,
    *,
    ids: npt.NDArray[np.uint32],
    offsets: Int64,
    subset_ids: Int64,
    shards: Int64,
    numbers: Int64,
    keys: UInt64,
    first_begin: int = 0,
    last: bool = True,
) -> Window:
    """The window of these documents; the columns are those of `Window`, and are kept, not copied.

    `first_begin` and `last` are those of `concat`, and mean nothing to other packings.
    """
    lengths = np.diff(offsets) + append_eod
    if packing == "concat":
        rows = concat(lengths, seq_len, first_begin, last)
        found = row_keys(rows, keys)
    elif packing == "none":
        rows, found = ordered(separate(lengths, seq_len), keys, by_length=True)
    else:
        rows, found = ordered(best_fit(lengths, seq_len), keys)
    return Window(ids, offsets, subset_ids, shards, numbers, keys, rows, found)
