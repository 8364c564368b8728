"""`Lane`: one lane's documents, tokenized and packed inside the lane, from any place on.

A lane depends on nothing but its source, its place and the `Layout`; so whoever holds it, on whichever rank, gives the
same rows. Going on from a place reads and tokenizes one window and no more: with "best_fit" and "none" a place is the
beginning of a window and how many of its rows were given; with "concat" it is a document and how many of its tokens,
EOD counted, stand in rows already given. When the last row of a window was given, the place is where the next begins.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pilekit.errors import PilekitError, visible
from pilekit.stream.order.shuffle import Int64, mix
from pilekit.stream.pack.concat import unused
from pilekit.stream.pack.window import MOST_TOKENS, Packing, TokenizedDocuments, Window, joined, packed, room_for
from pilekit.stream.read.lane_documents import LaneDocuments, LaneSource
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.tokenizer import UnencodableTextError

_MOST_EMPTY = 1000
"""So many windows in a row without a single token are taken for a corpus without any."""


@dataclass(frozen=True)
class Layout:
    """How documents become rows; the same for all lanes of a stream.

    window        documents that are packed together at most
    append_eod    whether each document is followed by EOD
    subset_ids    by subset name; names that it lacks get `other_subset`
    shard_names   what a document's shard indexes
    """

    tokenizer: Tokenizer
    seq_len: int
    packing: Packing
    window: int
    append_eod: bool
    seed: int
    subset_ids: Mapping[str, int]
    other_subset: int
    shard_names: Sequence[str]


class Place(NamedTuple):
    """Where a lane stands; see the module's docstring."""

    position: int
    document: int
    third: int = 0


@dataclass(frozen=True)
class _Documents:
    """Tokenized documents with their places.

    lengths            int64 [n], EOD counted
    positions, orders  int64 [n]: as in `LaneDocuments`
    skipped            int64 [n]: bad lines passed over before each; None where there are none
    """

    tokens: TokenizedDocuments
    lengths: Int64
    positions: Int64
    orders: Int64
    skipped: Int64 | None

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, begin: int, end: int) -> _Documents:
        lengths, positions, orders = (column[begin:end] for column in (self.lengths, self.positions, self.orders))
        skipped = None if self.skipped is None else self.skipped[begin:end]
        return _Documents(self.tokens.part(begin, end), lengths, positions, orders, skipped)


@dataclass(frozen=True)
class Given:
    """Rows that a lane gives: `count` of `window` from `first_row` on.

    skipped  int64 [documents]: bad lines passed over before each of the window's; None where there are none
    """

    window: Window
    skipped: Int64 | None
    first_row: int
    count: int


class Lane:
    """Lane `lane` of `source`, from `place` on; `close` it when done."""

    def __init__(self, source: LaneSource, lane: int, place: Place, layout: Layout) -> None:
        self.place = place
        self._lane = lane
        self._layout = layout
        self._source = source
        self._pieces: Iterator[LaneDocuments] | None = None
        self._waiting: LaneDocuments | None = None  # not tokenized yet
        self._skipped = 0  # bad lines that no document has followed yet
        self._ahead: _Documents | None = None  # tokenized, but in no window yet
        self._documents: _Documents | None = None
        self._window: Window | None = None
        self._row = 0
        self._after = place  # where the next window begins
        self._begin = 0  # "concat": tokens of the window's first document that stand in earlier rows
        self._ended = False  # "concat": whether the window is the last one

    def give(self, count: int) -> list[Given]:
        """The lane's next `count` rows, of one window or more; fewer only where the source ends."""
        given = []
        while count and self._has_row():
            window, documents = self._window, self._documents
            assert window is not None
            assert documents is not None
            some = min(count, len(window.rows) - self._row)
            given.append(Given(window, documents.skipped, self._row, some))
            self._row += some
            count -= some
            self.place = self._place(window, documents)
        return given

    def close(self) -> None:
        """Close what the source has opened for this lane."""
        if isinstance(self._pieces, Generator):
            self._pieces.close()

    def _place(self, window: Window, documents: _Documents) -> Place:
        if self._row == len(window.rows) and self._layout.packing != "concat":
            return self._after
        if self._layout.packing != "concat":
            return Place(self.place.position, self.place.document, self._row)
        last = int(window.rows.start[self._row]) - 1
        document = int(window.rows.document[last])
        position, order = int(documents.positions[document]), int(documents.orders[document])
        used = int(window.rows.begin[last] + window.rows.length[last])
        return Place(position, order, used) if used < documents.lengths[document] else Place(position, order + 1)

    def _has_row(self) -> bool:
        """Whether there is a row to give, in the window at hand or the next one; False where the source has ended."""
        for _ in range(_MOST_EMPTY):
            if self._window is not None and self._row < len(self._window.rows):
                return True
            if not (self._next_concat() if self._layout.packing == "concat" else self._next_window()):
                return False
        raise PilekitError(
            f"no tokens in {_MOST_EMPTY:,} windows of {self._layout.window} documents; their texts are empty, so give "
            "append_eod=True or other documents"
        )

    def _next_window(self) -> bool:
        resumed, first = self._window is None, self.place.third
        documents = self._gathered()
        if documents is None:
            return False
        layout = self._layout
        self._documents = documents
        self._window = packed(documents.tokens, layout.packing, layout.seq_len, layout.append_eod)
        self.place = self._after._replace(third=first if resumed else 0)
        self._after = Place(int(documents.positions[-1]), int(documents.orders[-1]) + 1)
        self._row = self.place.third
        if self._row and self._row >= len(self._window.rows):
            raise self._changed()
        if not len(self._window.rows):
            self.place = self._after
        return True

    def _next_concat(self) -> bool:
        """Full rows of what is left of the window before and of further documents; at the source's end, all of it."""
        layout = self._layout
        begin, rest = 0, None
        if self._window is None:
            begin = self.place.third
        elif self._documents is not None:
            # `unused` counts from the beginning of the first document, as the window's own rows do.
            document, begin = unused(self._documents.lengths, self._begin + len(self._window.rows) * layout.seq_len)
            if document < len(self._documents):
                rest = self._documents.part(document, len(self._documents))
        more = self._gathered()
        if (
            self._window is None
            and begin
            and (more is None or (more.positions[0], more.orders[0]) != self.place[:2] or more.lengths[0] <= begin)
        ):
            raise self._changed()
        parts = [part for part in (rest, more) if part is not None]
        if not parts or (more is None and self._ended):
            return False
        documents = _joined(parts)
        self._ended = more is None
        self._documents, self._begin = documents, begin
        self._window = packed(
            documents.tokens, "concat", layout.seq_len, layout.append_eod, first_begin=begin, last=self._ended
        )
        self._row = 0
        return True

    def _gathered(self) -> _Documents | None:
        """The documents of the next window; None where the source has ended."""
        window = self._layout.window
        parts: list[_Documents] = []
        taken = tokens = 0
        while taken < window and tokens < MOST_TOKENS:
            documents, self._ahead = self._ahead, None
            if documents is None:
                documents = self._tokenized(window - taken, MOST_TOKENS - tokens)
            if documents is None:
                break
            count = room_for(documents.lengths, window, taken, tokens)
            if count < len(documents):
                self._ahead = documents.part(count, len(documents))
            parts.append(documents.part(0, count))
            taken, tokens = taken + count, tokens + int(documents.lengths[:count].sum())
        return _joined(parts) if parts else None

    def _tokenized(self, documents: int, tokens: int) -> _Documents | None:
        """Some next documents: at most `documents`, of about `tokens` characters; None where the source has ended.

        A character is seldom more than a token, so hardly any are tokenized that the window does not take.
        """
        pieces: list[LaneDocuments] = []
        while documents > 0 and tokens > 0 and (piece := self._next_piece()) is not None:
            sizes = np.fromiter(map(len, piece.texts), np.int64, len(piece)) + self._layout.append_eod
            count = min(documents, int(np.searchsorted(np.cumsum(sizes) - sizes, tokens)))
            if count < len(piece):
                self._waiting = _part(piece, count, len(piece))
                piece = _part(piece, 0, count)
            pieces.append(piece)
            documents, tokens = documents - count, tokens - int(sizes[:count].sum())
        if not pieces:
            return None
        texts = [text for piece in pieces for text in piece.texts]
        shards = np.concatenate([piece.shards for piece in pieces])
        numbers = np.concatenate([piece.numbers for piece in pieces])
        positions = np.repeat([piece.position for piece in pieces], [len(piece) for piece in pieces])
        orders = np.concatenate([piece.order for piece in pieces])
        skipped = None
        if any(piece.skipped for piece in pieces):
            skipped = np.zeros(len(texts), np.int64)
            skipped[np.cumsum([0, *(len(piece) for piece in pieces[:-1])])] = [piece.skipped for piece in pieces]
        layout = self._layout
        try:
            ids, offsets = layout.tokenizer.encode_batch(texts)
        except UnencodableTextError as error:
            raise PilekitError(
                f"{visible(layout.shard_names[shards[error.index]])}: document {numbers[error.index]} holds a lone "
                "surrogate, which no UTF-8 can express; drop the document or repair its text in a filter"
            ) from error
        subsets = [layout.subset_ids.get(name, layout.other_subset) for piece in pieces for name in piece.subsets]
        keys = mix(layout.seed, self._lane, positions, orders)
        return _Documents(
            TokenizedDocuments(ids, offsets, np.array(subsets, np.int64), shards, numbers, keys),
            np.diff(offsets) + layout.append_eod,
            positions,
            orders,
            skipped,
        )

    def _next_piece(self) -> LaneDocuments | None:
        """The next documents to tokenize, at least one; None where the source has ended."""
        if self._waiting is not None:
            piece, self._waiting = self._waiting, None
            return piece
        if self._pieces is None:
            self._pieces = self._source.documents(self._lane, self.place.position, self.place.document)
        for piece in self._pieces:
            if len(piece):
                skipped, self._skipped = self._skipped + piece.skipped, 0
                return replace(piece, skipped=skipped) if skipped != piece.skipped else piece
            self._skipped += piece.skipped
        return None

    def _changed(self) -> PilekitError:
        position, document, third = self.place
        return PilekitError(
            f"lane {self._lane} cannot go on at position {position:,}, document {document:,}, {third:,}: the documents "
            "there are not those of when the state was taken; put the shards (and filters) of then back, or start "
            "without the state"
        )


def counts(given: Sequence[Given], subsets: int) -> tuple[int, Int64, Int64, Int64]:
    """(bad lines, subset ids, documents, tokens) of the rows given: int64 [n] each but the first.

    A document, and the bad lines before it, count where its first piece is.
    """
    ids, lengths, begins, skipped = [], [], [], 0
    for some in given:
        rows = some.window.rows
        pieces = slice(rows.start[some.first_row], rows.start[some.first_row + some.count])
        document, begin = rows.document[pieces], rows.begin[pieces]
        ids.append(some.window.subset_ids[document])
        lengths.append(rows.length[pieces])
        begins.append(begin)
        if some.skipped is not None:
            skipped += int(some.skipped[document[begin == 0]].sum())
    if not ids:
        none = np.zeros(0, np.int64)
        return skipped, none, none, none
    subset = np.concatenate(ids)
    tokens = np.bincount(subset, np.concatenate(lengths), subsets).astype(np.int64)
    documents = np.bincount(subset[np.concatenate(begins) == 0], minlength=subsets)
    used = np.flatnonzero(tokens)
    return skipped, used, documents[used], tokens[used]


def _part(piece: LaneDocuments, begin: int, end: int) -> LaneDocuments:
    """Documents `begin` .. `end` of the piece; bad lines stand before the first."""
    return LaneDocuments(
        piece.position,
        piece.order[begin:end],
        piece.texts[begin:end],
        piece.subsets[begin:end],
        piece.shards[begin:end],
        piece.numbers[begin:end],
        0 if begin else piece.skipped,
    )


def _joined(parts: Sequence[_Documents]) -> _Documents:
    if len(parts) == 1:
        return parts[0]
    return _Documents(
        joined([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.orders for part in parts]),
        None
        if all(part.skipped is None for part in parts)
        else np.concatenate(
            [np.zeros(len(part), np.int64) if part.skipped is None else part.skipped for part in parts]
        ),
    )
