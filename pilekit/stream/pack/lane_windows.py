"""`windows`: the windows of a lane, one after another, from any place on.

A window has the documents of its part of the lane, and its rows in the order in which the lane gives them. With
"best_fit" rows are shuffled by their keys, with "none" they are ordered by turns, with "concat" they follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self, TypeVar

import numpy as np

from pilekit.corpus.shuffle import Int64, UInt64, mix
from pilekit.stream.pack.packings import Rows, best_fit, concat, place_after, separate
from pilekit.stream.pack.window import Layout, Place, TokenizedDocuments, Turns, Window, join_documents, window_of
from pilekit.stream.read.lane_documents import ORDER, POSITION, SKIPPED

_TURNS = 5
"""The first word of the key of a turn's hash."""


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
            ends = sizes(part).cumsum()
            # The document that reaches the limit is the last.
            fitting = int(ends.searchsorted(layout.most_tokens - total)) + 1
            room = min(layout.window - documents, fitting, len(part))
            group.append(part if room == len(part) else part.part(0, room))
            documents, total = documents + room, total + int(ends[room - 1])
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
    """The windows of a lane from `place` on, after `turns.before` rows of the lane; one may have no rows.

    If `documents` are not drawn, all places keep the `drawn` of `place`.
    """
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
            position, order = window_documents.table[-1, [POSITION, ORDER]].tolist()
            end = Place(position, order + 1, 0, place.drawn).numbers()
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
        yield _running_window(whole, rows, lane, layout, place.drawn)
        document, begin = place_after(layout.lengths(whole), begin + len(rows) * layout.seq_len)
        leftover = [whole.part(document, len(whole))] if document < len(whole) else []
    if resumed:
        raise place.changed()
    if leftover:
        rows = concat(layout.lengths(leftover[0]), layout.seq_len, begin, last=True)
        yield _running_window(leftover[0], rows, lane, layout, place.drawn)


def _running_window(
    documents: TokenizedDocuments, rows: Rows, lane: int, layout: Layout, drawn: tuple[int, ...]
) -> Window:
    last = rows.start[1:] - 1
    document, used = rows.document[last], rows.begin[last] + rows.length[last]
    whole = used == layout.lengths(documents)[document]
    table = documents.table[document]
    after = np.empty((len(rows), 3 + len(drawn)), np.int64)
    after[:, 0], after[:, 1], after[:, 2] = table[:, POSITION], table[:, ORDER] + whole, np.where(whole, 0, used)
    after[:, 3:] = drawn
    return window_of(documents, rows, _row_keys(documents, rows, lane, layout.seed), after)


def _row_keys(documents: TokenizedDocuments, rows: Rows, lane: int, seed: int) -> UInt64:
    piece = rows.start[:-1]
    document, begin = rows.document[piece], rows.begin[piece]
    if len(documents.cut):
        begin = begin + documents.cut[document, 0]
    first = documents.table[document]
    return mix(mix(seed, lane, first[:, POSITION], first[:, ORDER]), begin)
