"""`Window`: some tokenized documents of a lane, and the rows into which they are packed.

With "best_fit" and "none" a window is packed alone: its rows depend only on its own documents. So a place in a lane is
the window's first document and the number of the window's rows already given, and resuming tokenizes one window. With
"concat" rows continue from window to window. There a place is a document and the number of its tokens, EOD counted, in
rows already given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shuffle import Int64, UInt64, mix
from pilekit.documents import Document
from pilekit.errors import PilekitError
from pilekit.stream.pack.packings import Rows, best_fit, concat, place_after, separate
from pilekit.stream.read.lane_documents import NUMBER, ORDER, POSITION, SHARD, SKIPPED, Table, document_table
from pilekit.stream.settings import Packing

MOST_TOKENS = 512 * 1024
"""The most tokens of a window, up to a document, so that its memory is bounded."""

_TURNS = 5
"""The first word of the key of a turn's hash."""


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


@dataclass(
    slots=True, eq=False
)  # Not frozen: making a frozen one takes three times as long, and each batch makes several.
class Window:
    """Documents, and all or some of the rows that are made of them.

    pieces    int64 [pieces, 12]: of each piece its document's row of the table; LENGTH and BEGIN as in `Rows`; SOURCE,
              the place of its first token in the documents' `ids`; FROM_TEXT, how many of its tokens are there (one
              less than its length if EOD ends it); DOCUMENT, its document's place in `documents`; and ENDS_ROW, 1 for
              the last piece of a row, else 0
    borders   where each row begins in the pieces of the window that was made, and the last one ends: [rows + 1]
    row_keys  uint64 [rows]: a hash of each row's first piece, unique to this use of the piece
    after     int64 [rows, 3 + n]: the lane's place after each row, as `Place.numbers`

    One table for all pieces of a window is made at once, so that a batch only joins a few slices.
    """

    documents: TokenizedDocuments
    pieces: Int64
    borders: list[int]
    row_keys: UInt64
    after: Int64

    def __len__(self) -> int:
        return len(self.borders) - 1

    def part(self, begin: int, end: int) -> Window:
        """The window with only the rows `begin` .. `end`, as views."""
        borders = self.borders[begin : end + 1]
        pieces = self.pieces[borders[0] - self.borders[0] : borders[-1] - self.borders[0]]
        return Window(self.documents, pieces, borders, self.row_keys[begin:end], self.after[begin:end])


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


class _Documents(Protocol):
    def __len__(self) -> int: ...
    def part(self, begin: int, end: int, /) -> Self: ...


D = TypeVar("D", bound=_Documents)


def parts_of_windows(parts: Iterable[D], sizes: Callable[[D], Int64], layout: Layout) -> Iterator[list[D]]:
    """Lists of parts. Each list has the documents of a window: fewer than usual if their sizes reach `most_tokens`.

    sizes  the size of each document of a part, int64 [documents]

    While a lane waits, its generators should keep alive only the documents that it still needs. So a list is handed out
    by `pop`, and the caller drops it.
    """
    group: list[D] = []
    documents = total = 0
    for part in parts:
        while len(part):
            size = sizes(part)
            fitting = int(np.searchsorted(total + np.cumsum(size) - size, layout.most_tokens))
            room = min(layout.window - documents, fitting)
            group.append(part.part(0, room))
            documents, total = documents + room, total + int(size[:room].sum())
            part = part.part(room, len(part))
            if documents == layout.window or total >= layout.most_tokens:
                full = [group]
                group, documents, total = [], 0, 0
                yield full.pop()
    if group:
        yield group


class Drawing(Protocol):
    """Documents that are drawn for a window when it begins, as `DrawnDocuments`."""

    def window(self, before: int) -> tuple[TokenizedDocuments, Int64]:
        """The parts of the next window, after so many rows of the lane, and the lane's places, as `Place.numbers`.

        Places are int64 [n, numbers]: with "concat" after each of the window's rows, else the one after the window.
        """


def windows(
    documents: Iterable[TokenizedDocuments] | Drawing, lane: int, place: Place, layout: Layout, turns: Turns
) -> Iterator[Window]:
    """The windows of a lane from `place` on, after `turns.before` rows of the lane; one may have no rows."""
    if layout.packing == "concat":
        if isinstance(documents, Iterable):
            yield from _running_windows(documents, lane, place, layout)
        else:
            yield from _drawn_rows(documents, lane, layout, turns.before)
        return
    begin, rows_given = place.numbers(), place.offset_in_window
    before = turns.before - rows_given
    drawing = None if isinstance(documents, Iterable) else documents
    of_windows = (
        parts_of_windows(documents, layout.lengths, layout) if isinstance(documents, Iterable) else iter(list, None)
    )
    for parts in of_windows:
        if drawing is None:
            window_documents = join_documents(parts)
            end = Place(int(window_documents.table[-1, POSITION]), int(window_documents.table[-1, ORDER]) + 1).numbers()
        else:
            window_documents, places = drawing.window(before)
            end = tuple(places[-1].tolist())
        parts.clear()
        window = _packed(window_documents, lane, begin, end, layout, turns._replace(before=before))
        begin, before = end, before + len(window)
        if rows_given:
            if rows_given >= len(window):
                raise place.changed()
            window, rows_given = window.part(rows_given, len(window)), 0
        yield window


def _packed(
    documents: TokenizedDocuments, lane: int, begin: tuple[int, ...], end: tuple[int, ...], layout: Layout, turns: Turns
) -> Window:
    """The window of these documents, for "best_fit" and "none", with the lane's places before and after them."""
    lengths = layout.lengths(documents)
    if layout.packing == "none":
        # A document of one token has no target and no row; the rest of a longer one has a row.
        in_rows = (lengths > 1) | (documents.cut[:, 0] > 0) if len(documents.cut) else lengths > 1
        if in_rows.any():
            # The first document that gets a row counts the bad lines before those of the window that get none.
            documents.table[np.argmax(in_rows), SKIPPED] += documents.table[~in_rows, SKIPPED].sum()
        rows = separate(np.where(in_rows, lengths, 0), layout.seq_len)
    else:
        rows = best_fit(lengths, layout.seq_len)
    keys = _row_keys(documents, rows, lane, layout.seed)
    # Best fit makes the fullest rows first, so rows are shuffled by their keys.
    order = np.argsort(keys, kind="stable") if layout.packing == "best_fit" else _by_turn(rows, keys, layout, turns)
    after = np.empty((len(rows), len(begin)), np.int64)
    after[:] = begin
    after[:, 2] = np.arange(1, len(rows) + 1)
    after[-1:] = end
    return window_of(documents, rows.take(order), keys[order], after)


def _drawn_rows(drawing: Drawing, lane: int, layout: Layout, before: int) -> Iterator[Window]:
    """The windows of a lane that draws with "concat": each ends with a row's end, so all rows are full."""
    while True:
        documents, after = drawing.window(before)
        rows = concat(layout.lengths(documents), layout.seq_len)
        yield window_of(documents, rows, _row_keys(documents, rows, lane, layout.seed), after)
        before += len(rows)


def _by_turn(rows: Rows, keys: UInt64, layout: Layout, turns: Turns) -> Int64:
    """The order of a window's rows for "none": rows by length are given to the window's turns by hash.

    The shortest row gets the turn with the lowest hash, the next longer row the next turn. Turns of one visit have one
    hash, so the rows of a visit have similar lengths. All lanes hash a turn alike, so the lanes that a step reads give
    rows of similar rank by length in their windows.
    """
    turn = np.arange(turns.before, turns.before + len(rows))
    order = np.empty(len(rows), np.int64)
    # Left, the places of the turns by hash; right, the rows by length. Equal ones are ordered by turn and by key, so
    # that every process finds one order.
    order[np.lexsort((turn, mix(layout.seed, _TURNS, turn // turns.per_visit)))] = np.lexsort((keys, rows.length))
    return order


def _running_windows(
    documents: Iterable[TokenizedDocuments], lane: int, place: Place, layout: Layout
) -> Iterator[Window]:
    leftover: list[TokenizedDocuments] = []
    begin = place.offset_in_window  # tokens of the first document that are in earlier rows
    resumed = begin > 0
    for part in documents:
        if resumed and (tuple(part.table[0, :2].tolist()) != place[:2] or layout.lengths(part)[0] <= begin):
            raise place.changed()
        resumed = False
        whole = join_documents([*leftover, part])
        rows = concat(layout.lengths(whole), layout.seq_len, begin)
        yield _running_window(whole, rows, lane, layout)
        document, begin = place_after(layout.lengths(whole), begin + len(rows) * layout.seq_len)
        leftover = [whole.part(document, len(whole))] if document < len(whole) else []
    if resumed:
        raise place.changed()
    if leftover:
        rows = concat(layout.lengths(leftover[0]), layout.seq_len, begin, last=True)
        yield _running_window(leftover[0], rows, lane, layout)


def _running_window(documents: TokenizedDocuments, rows: Rows, lane: int, layout: Layout) -> Window:
    last = rows.start[1:] - 1
    document, used = rows.document[last], rows.begin[last] + rows.length[last]
    whole = used == layout.lengths(documents)[document]
    table = documents.table[document]
    after = np.stack((table[:, POSITION], table[:, ORDER] + whole, np.where(whole, 0, used)), axis=1)
    return window_of(documents, rows, _row_keys(documents, rows, lane, layout.seed), after)


def _row_keys(documents: TokenizedDocuments, rows: Rows, lane: int, seed: int) -> UInt64:
    piece = rows.start[:-1]
    document, begin = rows.document[piece], rows.begin[piece]
    if len(documents.cut):
        begin = begin + documents.cut[document, 0]
    first = documents.table[document]
    return mix(mix(seed, lane, first[:, POSITION], first[:, ORDER]), begin)
