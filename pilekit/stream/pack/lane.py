"""`Lane`: one lane's documents packed inside the lane, from any place on.

A lane depends on nothing but its documents, its place and the `Layout`; so each rank that reads it gives the same rows.
Resuming from a place reads and tokenizes one window and no more: with "best_fit" and "none" a place is the beginning of
a window and how many of its rows were given; with "concat" it is a document and how many of its tokens, EOD counted,
stand in rows already given. When the last row of a window was given, the place is where the next begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pilekit.errors import PilekitError
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.concat import unused
from pilekit.stream.pack.window import (
    MOST_TOKENS,
    Layout,
    PackedWindow,
    RowRange,
    TokenizedDocuments,
    joined,
    packed,
    room_for,
)

_MOST_EMPTY = 1000
"""So many windows in a row without a single token are taken for a corpus without any."""


class Place(NamedTuple):
    """Where a lane stands; see the module's docstring."""

    position: int
    document: int
    offset_in_window: int = 0


class TokenSource(Protocol):
    """Tokenized documents, in order: `TokenizedLane`, or token batches."""

    def next(self, documents: int, tokens: int) -> TokenizedDocuments | None:
        """Some next documents, at least one, best no more than so many; None where there are no more."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class Lane:
    """The rows of these documents, from `place` on; `close` it when done."""

    def __init__(self, documents: TokenSource, place: Place, layout: Layout) -> None:
        self.place = place
        self._layout = layout
        self._source = documents
        self._ahead: TokenizedDocuments | None = None  # in no window yet
        self._window: PackedWindow | None = None
        self._row = 0
        self._after = place  # where the next window begins
        self._begin = 0  # "concat": tokens of the window's first document that stand in earlier rows
        self._ended = False  # "concat": whether the window is the last one

    def give(self, count: int) -> list[RowRange]:
        """The lane's next `count` rows, of one window or more; fewer only where the documents end."""
        given = []
        while count and self._has_row():
            window = self._window
            assert window is not None
            some = min(count, len(window.rows) - self._row)
            given.append(RowRange(window, self._row, some))
            self._row += some
            count -= some
            self.place = self._place(window)
        return given

    def close(self) -> None:
        """Close what was opened for this lane."""
        self._source.close()

    def _place(self, window: PackedWindow) -> Place:
        if self._row == len(window.rows) and self._layout.packing != "concat":
            return self._after
        if self._layout.packing != "concat":
            return Place(self.place.position, self.place.document, self._row)
        last = int(window.rows.start[self._row]) - 1
        document = int(window.rows.document[last])
        position, order = int(window.positions[document]), int(window.orders[document])
        used = int(window.rows.begin[last] + window.rows.length[last])
        whole = used == window.offsets[document + 1] - window.offsets[document] + self._layout.append_eod
        return Place(position, order + 1) if whole else Place(position, order, used)

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
        resumed, first = self._window is None, self.place.offset_in_window
        documents = self._gathered()
        if documents is None:
            return False
        layout = self._layout
        self._window = packed(documents, layout.packing, layout.seq_len, layout.append_eod)
        self.place = self._after._replace(offset_in_window=first if resumed else 0)
        self._after = Place(int(documents.positions[-1]), int(documents.orders[-1]) + 1)
        self._row = self.place.offset_in_window
        if self._row and self._row >= len(self._window.rows):
            raise self._changed()
        if not len(self._window.rows):
            self.place = self._after
        return True

    def _next_concat(self) -> bool:
        """Full rows of what is left of the window before and of further documents; at the source's end, all of it."""
        layout = self._layout
        begin, rest, window = 0, None, self._window
        if window is None:
            begin = self.place.offset_in_window
        else:
            # `unused` counts from the beginning of the first document, as the window's own rows do.
            document, begin = unused(self._lengths(window), self._begin + len(window.rows) * layout.seq_len)
            if document < len(window):
                rest = window.part(document, len(window))
        more = self._gathered()
        if (
            window is None
            and begin
            and (
                more is None or (more.positions[0], more.orders[0]) != self.place[:2] or self._lengths(more)[0] <= begin
            )
        ):
            raise self._changed()
        parts = [part for part in (rest, more) if part is not None]
        if not parts or (more is None and self._ended):
            return False
        self._ended, self._begin = more is None, begin
        self._window = packed(
            joined(parts), "concat", layout.seq_len, layout.append_eod, first_begin=begin, last=self._ended
        )
        self._row = 0
        return True

    def _gathered(self) -> TokenizedDocuments | None:
        """The documents of the next window; None where there are no more."""
        window = self._layout.window
        parts: list[TokenizedDocuments] = []
        taken = tokens = 0
        while taken < window and tokens < MOST_TOKENS:
            documents, self._ahead = self._ahead, None
            if documents is None:
                documents = self._source.next(window - taken, MOST_TOKENS - tokens)
            if documents is None:
                break
            lengths = self._lengths(documents)
            count = room_for(lengths, window, taken, tokens)
            if count < len(documents):
                self._ahead = documents.part(count, len(documents))
                documents = documents.part(0, count)
            parts.append(documents)
            taken, tokens = taken + count, tokens + int(lengths[:count].sum())
        return joined(parts) if parts else None

    def _lengths(self, documents: TokenizedDocuments) -> Int64:
        lengths: Int64 = np.diff(documents.offsets) + self._layout.append_eod
        return lengths

    def _changed(self) -> PilekitError:
        position, document, offset = self.place
        return PilekitError(
            f"a lane cannot resume at position {position:,}, document {document:,}, {offset:,}: other documents are "
            "there than when the state was taken; put the shards (and filters) of then back, or start without the state"
        )


def counts(given: Sequence[RowRange], subsets: int) -> tuple[int, Int64, Int64, Int64]:
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
        skipped += int(some.window.skipped[document[begin == 0]].sum())
    if not ids:
        none = np.zeros(0, np.int64)
        return skipped, none, none, none
    subset = np.concatenate(ids)
    tokens = np.bincount(subset, np.concatenate(lengths), subsets).astype(np.int64)
    documents = np.bincount(subset[np.concatenate(begins) == 0], minlength=subsets)
    used = np.flatnonzero(tokens)
    return skipped, used, documents[used], tokens[used]
