"""`Window`: some tokenized documents of a lane, and the rows into which they are packed; `Pieces`: those of a batch.

With "best_fit" and "none" a window is packed alone: its rows depend only on its own documents. So a place in a lane is
the window's first document and the number of the window's rows already given, and resuming tokenizes one window. With
"concat" rows continue from window to window. There a place is a document and the number of its tokens, EOD counted, in
rows already given. lane_windows.py makes the windows of a lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shuffle import Int64, UInt64
from pilekit.documents import Document
from pilekit.errors import PilekitError
from pilekit.stream.pack.packings import Rows
from pilekit.stream.read.lane_documents import NUMBER, SHARD, Table, document_table
from pilekit.stream.settings import Packing

MOST_TOKENS = 512 * 1024
"""The most tokens of a window, up to a document, so that its memory is bounded."""


class Place(NamedTuple):
    """A place in a lane: see the module's docstring. `document` is a number in the unit's order, from 0.

    drawn   in a lane that draws from several sequences, the place in each (drawn_windows.py)
    """

    position: int
    document: int
    offset_in_window: int = 0
    drawn: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Int64) -> Place:
        """The place that `numbers` writes as int64 [3 + drawn]."""
        position, document, offset, *drawn = numbers.tolist()
        return cls(position, document, offset, tuple(drawn))

    def numbers(self) -> tuple[int, ...]:
        """The place as numbers in a row."""
        return (*self[:3], *self.drawn)

    def changed(self) -> PilekitError:
        """The error of a lane that finds other documents at this place than the run had."""
        return PilekitError(
            f"a lane cannot resume at position {self.position:,}, document {self.document:,}, "
            f"{self.offset_in_window:,}: the documents there are not those of the state; restore the shards and "
            "filters of that run, or start without the state"
        )


class Turns(NamedTuple):
    """The turns of a lane: row i of the lane, counted from the start of the run, has turn i.

    before     rows that the lane has given
    per_visit  rows that a step takes from the lane
    """

    before: int
    per_visit: int


@dataclass(frozen=True)
class Layout:
    """The settings with which documents become rows.

    window       the most documents that are packed together
    append_eod   whether each document is followed by EOD
    seed         of the order of a window's rows
    most_tokens  a window with so many tokens, EOD counted, takes no further document
    """

    seq_len: int
    packing: Packing
    window: int
    append_eod: bool
    seed: int
    most_tokens: int = MOST_TOKENS

    def lengths(self, documents: TokenizedDocuments) -> Int64:
        """Tokens of each document or part, its EOD counted, int64 [documents]."""
        lengths = documents.offsets[1:] - documents.offsets[:-1] + self.append_eod
        return lengths - documents.cut[:, 1] if self.append_eod and len(documents.cut) else lengths


@dataclass(frozen=True)
class TokenizedDocuments:
    """Documents of one lane.

    ids         uint32 [tokens], all documents one after another, without EODs
    offsets     int64 [documents + 1], from 0: document i is `ids[offsets[i]:offsets[i + 1]]`
    table       [documents]
    stored      the documents themselves, if the stream gives untokenized documents; otherwise empty
    cut         of parts of documents: int64 [documents, 2], the tokens before each, and 1 if more follow it, else 0.
                Of whole documents: [0, 2]
    """

    ids: npt.NDArray[np.uint32]
    offsets: Int64
    table: Table
    stored: Sequence[Document] = ()
    cut: Int64 = field(default_factory=lambda: np.zeros((0, 2), np.int64))

    def __len__(self) -> int:
        return len(self.table)

    def part(self, begin: int, end: int) -> TokenizedDocuments:
        """Documents `begin` .. `end`, as views."""
        first, last = self.offsets[begin], self.offsets[end]
        offsets = self.offsets[begin : end + 1] - first
        ids = (
            self.ids[first:last] if first < last else np.zeros(0, np.uint32)
        )  # An empty view would keep all ids alive.
        return TokenizedDocuments(ids, offsets, self.table[begin:end], self.stored[begin:end], self.cut[begin:end])


LENGTH, BEGIN, SOURCE, FROM_TEXT, DOCUMENT, ENDS_ROW = range(6, 12)
"""Columns of a window's pieces, after those of their documents' table: see `Window`."""


# Not frozen: making a frozen one takes three times as long, and each batch makes several.
@dataclass(slots=True, eq=False)
class Window:
    """Documents, and all or some of the rows that are made of them.

    pieces    int64 [pieces, 12]: of each piece its document's row of the table; LENGTH and BEGIN as in `Rows`; SOURCE,
              the place of its first token in the documents' `ids`; FROM_TEXT, how many of its tokens are there (one
              less than its length if EOD ends it); DOCUMENT, its document's place in `documents`; and ENDS_ROW, 1 for
              the last piece of a row, else 0
    row_keys  uint64 [rows]: a hash of each row's first piece, unique to this use of the piece
    after     int64 [rows, 3 + n]: the lane's place after each row, as `Place.numbers`

    One table for all pieces of a window is made at once, so that a batch only joins a few slices. So `part` makes just
    one view, and its other columns are those of the window as it was made, from row `first` on:

    borders             where each row begins in that window's pieces, and the last one ends
    all_keys, all_after of all rows of that window
    """

    documents: TokenizedDocuments
    pieces: Int64
    borders: list[int]
    all_keys: UInt64
    all_after: Int64
    first: int = 0

    def __len__(self) -> int:
        return len(self.borders) - 1

    @property
    def row_keys(self) -> UInt64:
        """Of its rows, uint64 [rows]."""
        return self.all_keys[self.first : self.first + len(self)]

    @property
    def after(self) -> Int64:
        """Of its rows, int64 [rows, 3 + n]."""
        return self.all_after[self.first : self.first + len(self)]

    def part(self, begin: int, end: int) -> Window:
        """The window with only the rows `begin` .. `end`, as views."""
        borders, before = self.borders[begin : end + 1], self.borders[0]
        pieces = self.pieces[borders[0] - before : borders[-1] - before]
        return Window(self.documents, pieces, borders, self.all_keys, self.all_after, self.first + begin)


def window_of(documents: TokenizedDocuments, rows: Rows, row_keys: UInt64, after: Int64) -> Window:
    """The window of these documents and rows."""
    document, offsets = rows.document, documents.offsets
    pieces = np.empty((len(document), 12), np.int64)
    pieces[:, :LENGTH] = documents.table[document]
    pieces[:, LENGTH], pieces[:, BEGIN], pieces[:, DOCUMENT] = rows.length, rows.begin, document
    pieces[:, SOURCE] = source = offsets[document] + rows.begin
    pieces[:, FROM_TEXT] = np.minimum(rows.length, offsets[document + 1] - source)
    if len(documents.cut):
        pieces[:, BEGIN] += documents.cut[document, 0]
    pieces[:, ENDS_ROW] = 0
    pieces[rows.start[1:] - 1, ENDS_ROW] = 1
    return Window(documents, pieces, rows.start.tolist(), row_keys, after)


@dataclass(slots=True, eq=False)
class Pieces:
    """The pieces of some rows, row after row.

    columns   int64 [pieces, 12], as `Window.pieces`; SOURCE, FROM_TEXT and DOCUMENT mean nothing without the window
    rows      the number of rows; the last may have no piece
    """

    columns: Int64
    rows: int

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def per_row(self) -> Int64:
        """The number of pieces in each row, int64 [rows]."""
        per_row = np.zeros(self.rows, np.int64)
        ends = np.flatnonzero(self.columns[:, ENDS_ROW]) + 1
        per_row[: len(ends)] = np.diff(ends, prepend=0)
        return per_row

    @property
    def length(self) -> Int64:
        """Tokens of each piece, int64 [pieces], as in `Rows`."""
        return self.columns[:, LENGTH]

    @property
    def begin(self) -> Int64:
        """Tokens of the document before each piece, int64 [pieces], as in `Rows`."""
        return self.columns[:, BEGIN]

    @property
    def table(self) -> Table:
        """The document of each piece, [pieces]."""
        return self.columns[:, :LENGTH]

    def documents(self, shard_names: Sequence[str] | Mapping[int, str]) -> list[list[tuple[str, int]]]:
        """For each row, (shard name, document number) of its pieces."""
        names = (shard_names[shard] for shard in self.table[:, SHARD].tolist())
        identities = zip(names, self.table[:, NUMBER].tolist(), strict=True)
        return [list(islice(identities, count)) for count in self.per_row.tolist()]


def pieces_of(parts: Sequence[Window]) -> Pieces:
    """The pieces of the rows of `parts`, which has at least one entry; only the last may have rows without pieces."""
    return Pieces(np.concatenate([part.pieces for part in parts]), sum(map(len, parts)))


def padding(count: int) -> Window:
    """`count` rows without documents."""
    documents = TokenizedDocuments(np.zeros(0, np.uint32), np.zeros(1, np.int64), document_table(0))
    no_pieces, after = np.zeros((0, 12), np.int64), np.zeros((count, 3), np.int64)
    return Window(documents, no_pieces, [0] * (count + 1), np.zeros(count, np.uint64), after)


def join_documents(parts: Sequence[TokenizedDocuments]) -> TokenizedDocuments:
    """All documents of `parts`, which has at least one entry. They are copied, unless there is only one part."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.ids) for part in parts)])
    offsets = [[0], *(part.offsets[1:] + first for part, first in zip(parts, before, strict=False))]
    ids, table = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "table"))
    stored = [document for part in parts for document in part.stored]
    return TokenizedDocuments(ids, np.concatenate(offsets), table, stored)
