"""`Lane`: the rows of one lane, from any place on.

A lane depends only on its documents, its place, the number of rows before it and the `Layout`. So
every rank that reads it gets the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pilekit.errors import PilekitError, counted
from pilekit.stream.pack.window import Layout, Place, Window
from pilekit.stream.read.lane_documents import NUMBER, SHARD

_MOST_EMPTY, _FEW_EMPTY, _MOST_TIMES = 1 << 18, 1000, 16
"""Without a row, the corpus counts as empty after so many documents, or after fewer if each was read 16 times."""


class Lane:
    """The rows of a lane's windows, which begin at `place`.

    place_now   the place after the last row that was given, as `Place.numbers`, int64 [3 + n]
    """

    def __init__(self, windows: Iterator[Window], place: Place, layout: Layout) -> None:
        self.place_now = np.array(place.numbers(), np.int64)
        self._layout = layout
        self._windows = windows
        self._window: Window | None = None  # the window whose first `_given` rows were given; None: all were
        self._given = 0

    @property
    def place(self) -> Place:
        """The place after the last row that was given."""
        return Place.of(self.place_now)

    def give(self, count: int) -> list[Window]:
        """The lane's next `count` rows, from one window or more. Fewer only if the documents end."""
        windows = []
        while count > 0 and (window := self._window or self._next()) is not None:
            begin, rows = self._given, len(window)
            end = min(begin + count, rows)
            windows.append(window.part(begin, end))
            self._window, self._given = (window, end) if end < rows else (None, 0)
            self.place_now = window.after[end - 1]
            count -= end - begin
        return windows

    def skip(self, count: int) -> int:
        """Skip the lane's next `count` rows. Returns the number skipped, which is smaller if the documents end."""
        remaining = count
        while remaining > 0 and (windows := self.give(min(remaining, 64))):  # few at a time, to free old windows
            remaining -= rows_in(windows)
        return count - remaining

    def _next(self) -> Window | None:
        """The next window that has rows. None at the documents' end."""
        read, documents = 0, set[tuple[int, int]]()
        for window in self._windows:
            if len(window):
                return window
            if self._layout.packing == "concat" and self._layout.lengths(window.documents).any():
                continue  # the next windows hold these documents too, until a row is full
            documents.update(map(tuple, window.documents.table[:, [SHARD, NUMBER]].tolist()))
            read += len(window.documents.table)
            if read > min(_MOST_EMPTY, _FEW_EMPTY + _MOST_TIMES * len(documents)):
                raise PilekitError(
                    f"no row in {counted(len(documents), 'document')}, read {counted(read, 'time')}: the texts are "
                    "empty; give append_eod=True, another packing or other documents"
                )
        return None


def rows_in(windows: Sequence[Window]) -> int:
    """The number of rows in these windows."""
    return sum(map(len, windows))


def rows_between(windows: Sequence[Window], begin: int, end: int) -> list[Window]:
    """Rows `begin` .. `end` of these windows, or fewer if they end before."""
    parts = []
    for window in windows:
        first, last = max(begin, 0), min(end, len(window))
        if first < last:
            parts.append(window.part(first, last))
        begin, end = begin - len(window), end - len(window)
    return parts
