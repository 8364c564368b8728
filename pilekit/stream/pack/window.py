"""`Window`: a lane's next documents, tokenized, and the rows they give.

A window is packed alone: its rows depend on its own documents and on nothing before or after. So a lane's place is the
place of its window's first document and how many of the rows were handed out, and going on there tokenizes one window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pilekit.stream.pack.best_fit import best_fit
from pilekit.stream.pack.concat import concat
from pilekit.stream.pack.rows import Int64, Rows, UInt64, ordered, row_keys
from pilekit.stream.pack.separate import separate

Packing = Literal["best_fit", "concat", "none"]

PACKINGS: tuple[Packing, ...] = ("best_fit", "concat", "none")

MOST_TOKENS = 512 * 1024
"""No further document is taken into a window that has so many tokens, EOD counted, so that its memory is bounded."""


@dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as a window takes them.

    ids         uint32 [tokens], all documents one after another, no EOD among them
    offsets     int64 [documents + 1], from 0: document i is `ids[offsets[i]:offsets[i + 1]]`
    subset_ids  int64 [documents]
    shards      int64 [documents]: index of the shard each comes from
    numbers     int64 [documents]: its number there
    keys        uint64 [documents]: a key for each, unique to this use of it
    """

    ids: npt.NDArray[np.uint32]
    offsets: Int64
    subset_ids: Int64
    shards: Int64
    numbers: Int64
    keys: UInt64

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, begin: int, end: int) -> TokenizedDocuments:
        """Documents `begin` .. `end`; their columns are views."""
        first, last = self.offsets[begin], self.offsets[end]
        return TokenizedDocuments(
            self.ids[first:last],
            self.offsets[begin : end + 1] - first,
            self.subset_ids[begin:end],
            self.shards[begin:end],
            self.numbers[begin:end],
            self.keys[begin:end],
        )


@dataclass(frozen=True)
class Window(TokenizedDocuments):
    """Documents and their rows.

    rows      `Rows` of these documents
    row_keys  uint64 [rows]: a hash of each row's first piece
    """

    rows: Rows
    row_keys: UInt64


def joined(parts: Sequence[TokenizedDocuments]) -> TokenizedDocuments:
    """All documents of `parts`, one part after another; at least one part. Copies, but for a single part."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.ids) for part in parts)])
    return TokenizedDocuments(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([[0], *(part.offsets[1:] + first for part, first in zip(parts, before, strict=False))]),
        np.concatenate([part.subset_ids for part in parts]),
        np.concatenate([part.shards for part in parts]),
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.keys for part in parts]),
    )


def room_for(lengths: Int64, window: int, documents: int = 0, tokens: int = 0) -> int:
    """How many of the next documents, of `lengths` (EOD counted), go into a window that has `documents` and `tokens`.

    A document is taken while fewer than `window` and fewer than `MOST_TOKENS` tokens were.
    """
    before = tokens + np.cumsum(lengths) - lengths
    return min(window - documents, int(np.searchsorted(before, MOST_TOKENS)))


def packed(
    documents: TokenizedDocuments,
    packing: Packing,
    seq_len: int,
    append_eod: bool = True,
    *,
    first_begin: int = 0,
    last: bool = True,
) -> Window:
    """The window of all these documents; `first_begin` and `last` are those of `concat`, for no other packing."""
    lengths = np.diff(documents.offsets) + append_eod
    if packing == "concat":
        rows = concat(lengths, seq_len, first_begin, last)
        keys = row_keys(rows, documents.keys)
    elif packing == "none":
        rows, keys = ordered(separate(lengths, seq_len), documents.keys, by_length=True)
    else:
        rows, keys = ordered(best_fit(lengths, seq_len), documents.keys)
    return Window(**vars(documents), rows=rows, row_keys=keys)
