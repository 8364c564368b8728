"""`PackedWindow`: a lane's next documents, tokenized, and the rows they give.

A window is packed alone: its rows depend on its own documents and on nothing before or after. So a lane's place is the
place of its window's first document and how many of the rows were handed out, and resuming there tokenizes one window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

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
class Layout:
    """How documents become rows.

    window        documents that are packed together at most
    append_eod    whether each document is followed by EOD
    """

    seq_len: int
    packing: Packing
    window: int
    append_eod: bool


@dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as a window takes them.

    ids         uint32 [tokens], all documents one after another, no EOD among them
    offsets     int64 [documents + 1], from 0: document i is `ids[offsets[i]:offsets[i + 1]]`
    subset_ids  int64 [documents]
    shards      int64 [documents]: index of the shard each comes from
    numbers     int64 [documents]: its number there
    keys        uint64 [documents]: a key for each, unique to this use of it
    positions, orders   int64 [documents]: each one's place in its lane, as in `LaneDocuments`
    skipped     int64 [documents]: bad lines passed over before each
    """

    ids: npt.NDArray[np.uint32]
    offsets: Int64
    subset_ids: Int64
    shards: Int64
    numbers: Int64
    keys: UInt64
    positions: Int64
    orders: Int64
    skipped: Int64

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, begin: int, end: int) -> TokenizedDocuments:
        """Documents `begin` .. `end`; their columns are views."""
        first, last = self.offsets[begin], self.offsets[end]
        columns = {name: getattr(self, name)[begin:end] for name in _OF_EACH}
        return TokenizedDocuments(self.ids[first:last], self.offsets[begin : end + 1] - first, **columns)


_OF_EACH = [field.name for field in fields(TokenizedDocuments)][2:]


@dataclass(frozen=True)
class PackedWindow(TokenizedDocuments):
    """Documents and their rows.

    rows      `Rows` of these documents
    row_keys  uint64 [rows]: a hash of each row's first piece
    """

    rows: Rows
    row_keys: UInt64


@dataclass(frozen=True)
class RowRange:
    """Some rows of a window: `count` from `first_row` on."""

    window: PackedWindow
    first_row: int
    count: int


def padding(count: int) -> RowRange:
    """`count` rows without documents."""
    none: Any = np.zeros(0, np.int64)
    columns = dict.fromkeys(_OF_EACH, none)
    rows = Rows(none, none, none, np.zeros(count + 1, np.int64))
    window = PackedWindow(
        np.zeros(0, np.uint32), np.zeros(1, np.int64), **columns, rows=rows, row_keys=np.zeros(count, np.uint64)
    )
    return RowRange(window, 0, count)


def joined(parts: Sequence[TokenizedDocuments]) -> TokenizedDocuments:
    """All documents of `parts`, one part after another; at least one part. Copies, but for a single part."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.ids) for part in parts)])
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_EACH}
    offsets = [[0], *(part.offsets[1:] + first for part, first in zip(parts, before, strict=False))]
    return TokenizedDocuments(np.concatenate([part.ids for part in parts]), np.concatenate(offsets), **columns)


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
) -> PackedWindow:
    """The window of all these documents; `first_begin` and `last` are those of `concat`, for no other packing."""
    lengths = np.diff(documents.offsets) + append_eod
    if packing == "concat":
        rows = concat(lengths, seq_len, first_begin, last)
        keys = row_keys(rows, documents.keys)
    elif packing == "none":
        rows, keys = ordered(separate(lengths, seq_len), documents.keys, by_length=True)
    else:
        rows, keys = ordered(best_fit(lengths, seq_len), documents.keys)
    return PackedWindow(**vars(documents), rows=rows, row_keys=keys)
