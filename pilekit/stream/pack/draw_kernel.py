"""The compiled loop that draws a window's documents for a lane: see drawn_windows.py, and order/draws.py for the rule.

It runs until the window is full, or until Python has something to do: read more of a subset, change the shares, or
make room for more parts. Then it is called again. numba neither reorders nor joins operations on floats, so each turn
is the number that the rule's operations give, one after another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import float64, int64

from pilekit.corpus.shuffle import Int64
from pilekit.workers.kernels import compiled

PARTS, ENDED, TOKENS, FILLED, ROWS = range(5)
"""What a window has so far: drawn parts, documents that end in it, tokens, the lane's token after it as if all rows
were full, and, if a row's place is kept, full rows."""

FULL, NEXT_SHARES, MORE_ROOM = -1, -2, -3
"""Why `draw` returns; a number from 0 is the subset of which more must be read."""

SOURCE, DOCUMENT, BEGIN, LENGTH, GOES_ON = range(5)
"""Columns of a drawn part: the number of what was read, the document's place in it, the document's tokens before the
part, its own tokens, and whether more follow."""


@compiled(
    int64(
        *[int64[::1]] * 5,
        *[float64[::1]] * 2,
        *[int64[:, ::1]] * 3,
        int64[:, ::1],
        float64[:, ::1],
        *[int64] * 7,
    )
)
def draw(
    has: Int64,
    at: Int64,
    ends: Int64,
    used: Int64,
    sources: Int64,
    turns: npt.NDArray[np.float64],
    rates: npt.NDArray[np.float64],
    lengths: Int64,
    codes: Int64,
    parts: Int64,
    row_places: Int64,
    row_turns: npt.NDArray[np.float64],
    seq_len: int,
    window: int,
    most_tokens: int,
    limit: int,
    until: int,
    is_concat: int,
    is_separate: int,
) -> int:
    """Draw parts of documents, each to the end of a row at most; returns why it stops.

    has            int64 [5], changed: `PARTS` and so on
    at, ends, used int64 [subsets], changed: the next document of what was read of each subset, the number of these, and
                   the next document's tokens that were drawn before
    sources        int64 [subsets]: the number of what was read of each subset
    turns, rates   float64 [subsets]: as in `Draws`; `turns` is changed
    lengths        int64 [subsets, n]: tokens of what was read, EOD counted
    codes          int64 [subsets, 1 + n]: the place before the first of these, and after each
    parts          int64 [m, 5]: receives the parts
    row_places     int64 [r, 1 + 2 subsets], and
    row_turns      float64 [r, subsets]: for "concat" receive the place after each full row: the window's parts so far,
                   the subsets' places, and `used`; and the turns
    window, most_tokens   as in `Layout`
    limit, until   no document begins at this token of the lane or a later one; shares hold up to token `until`
    """
    subsets = len(turns)
    while True:
        filled = has[FILLED]
        in_row = filled % seq_len if is_concat else 0
        if in_row == 0 and (has[ENDED] >= window or has[TOKENS] >= most_tokens or filled >= limit):
            return FULL
        if filled >= until:
            return NEXT_SHARES
        if has[PARTS] == len(parts):
            return MORE_ROOM
        number = 0
        for other in range(1, subsets):
            if turns[other] < turns[number]:
                number = other
        if at[number] == ends[number]:
            return number
        document = at[number]
        left = lengths[number, document] - used[number]
        taken = min(left, seq_len - in_row)
        goes_on = taken < left
        part = has[PARTS]
        parts[part, SOURCE], parts[part, DOCUMENT], parts[part, BEGIN] = sources[number], document, used[number]
        parts[part, LENGTH], parts[part, GOES_ON] = taken, goes_on
        has[PARTS] += 1
        has[TOKENS] += taken
        turns[number] += taken * rates[number]
        if is_separate:
            # A document of one token has no row; any other part has one.
            has[FILLED] += seq_len if lengths[number, document] > 1 else 0
        else:
            has[FILLED] += taken
        if goes_on:
            used[number] += taken
        else:
            used[number] = 0
            at[number] += 1
            has[ENDED] += 1
        if is_concat and taken > 0 and has[FILLED] % seq_len == 0:
            row = has[ROWS]
            row_places[row, 0] = has[PARTS]
            for other in range(subsets):
                row_places[row, 1 + other] = codes[other, at[other]]
                row_places[row, 1 + subsets + other] = used[other]
                row_turns[row, other] = turns[other]
            has[ROWS] += 1
