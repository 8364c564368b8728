"""`Lane`: the rows of one lane, from any place on.

A lane depends only on its documents, its place, the number of rows before it and the `Layout`. So
every rank that reads it gets the same rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

from pilekit.errors import PilekitError
from pilekit.stream.pack.window import Layout, Place, RowRange, TokenizedDocuments, Turns, Window, windows

_MOST_EMPTY = 1000
"""After this number of consecutive windows without a token, the corpus counts as empty."""


class Lane:
    """The rows of `documents`, which begin at `place` of lane `lane`. `self.place` is the place after the last row.

    opened   the generator that reads the documents; `close` closes it
    turns    the rows given before `place`, and per visit; only the order of rows with "none" depends on them
    """

    def __init__(
        self,
        documents: Iterable[TokenizedDocuments],
        lane: int,
        place: Place,
        layout: Layout,
        opened: Generator[Any, None, None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.place = place
        self._layout, self._opened = layout, opened
        self._windows = windows(documents, lane, place, layout, turns or Turns())
        self._left: RowRange | None = None  # rows left of the current window

    def give(self, count: int) -> list[RowRange]:
        """The lane's next `count` rows, from one window or more. Fewer only if the documents end."""
        given = []
        while count > 0 and (left := self._left or self._next()) is not None:
            some = min(count, left.count)
            given.append(left.part(0, some))
            self._left = left.part(some, left.count) if some < left.count else None
            self.place = Place(*left.window.after[left.first_row + some - 1].tolist())
            count -= some
        return given

    def skip(self, count: int) -> int:
        """Skip the lane's next `count` rows. Returns the number skipped, which is smaller if the documents end."""
        left = count
        while left > 0 and (given := self.give(min(left, 64))):  # few at a time, so that old windows are freed
            left -= rows_in(given)
        return count - left

    def close(self) -> None:
        """Close the generator that reads the documents."""
        if self._opened is not None:
            self._opened.close()

    def _next(self) -> RowRange | None:
        """The rows of the next window that has rows. None at the documents' end."""
        window: Window
        for empty, window in enumerate(self._windows):
            if len(window.rows):
                return RowRange(window, 0, len(window.rows))
            if empty == _MOST_EMPTY:
                raise PilekitError(
                    f"no tokens in {_MOST_EMPTY:,} windows of {self._layout.window} documents: their texts are empty; "
                    "give append_eod=True or other documents"
                )
        return None


def rows_in(given: Sequence[RowRange]) -> int:
    """The number of rows in these ranges."""
    return sum(some.count for some in given)


def rows_between(given: Sequence[RowRange], begin: int, end: int) -> list[RowRange]:
    """Rows `begin` .. `end` of these ranges, or fewer if they end before."""
    found = []
    for some in given:
        first, last = max(begin, 0), min(end, some.count)
        if first < last:
            found.append(some.part(first, last))
        begin, end = begin - some.count, end - some.count
    return found
