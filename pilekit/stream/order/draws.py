"""`Draws`: which subset gives a lane's next tokens, so that each subset has its share of the lane's tokens.

Each subset has a number, its *turn*: the lane's token, counted in the lane's own time, at which its next part of a
document is due. The lane takes from the subset with the earliest turn, the first by name of equal ones. A part is the
next of the document's tokens, up to the end of a row. A part of n tokens of a subset with share w moves that subset's
turn n / w tokens on. So after T tokens each subset has had w * T of them, up to a row of its own and a row of another
subset, wherever one begins to count and however long documents are. This is start-time fair queueing (Goyal, Vin, Cheng
1996), known from networks, with parts of documents for packets.

When shares change, a turn is worth other tokens. What stays is the *wait*: the tokens of its own that a subset is ahead
of its share, (turn - earliest turn) * w. A subset without a share keeps its wait until it has one again.

At the beginning, all subsets' turns would be 0 in all lanes, so every lane would begin with the same subset. Instead a
subset waits u * m tokens, where m is the length of the part in which a token of the subset lies on average, and u is
spread evenly over the lanes, from 0 to 1. That is the wait at which one would find a lane that has run for long. So the
shares hold from the first step on.

Turns are float64 numbers. All that is done with them is +, -, * and /, one after another, which every machine rounds
alike. So the rule has the same result everywhere. pack/draw_kernel.py draws by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


class Draws:
    """The turns of one lane.

    basis   0: `values` are waits, in tokens; s + 1: `turns` are turns, under the shares of step s
    values  float64 [subsets]: waits; under shares of a step only those of subsets without a share mean something
    turns   float64 [subsets]: the turns of subsets with a share, inf for others. Whoever draws moves them on
    rates   float64 [subsets]: how far a token of a subset moves its turn
    """

    def __init__(self, basis: int, values: Sequence[float], shares: Sequence[float] = ()) -> None:
        self.basis, self.values = basis, np.array(values, np.float64)
        self._shares = np.array(shares if basis else [0.0] * len(values), np.float64)
        self._prepare()

    def _prepare(self) -> None:
        has = self._shares > 0
        self.turns = np.where(has, self.values, inf)
        self.rates = np.divide(1.0, self._shares, out=np.zeros(len(has)), where=has)

    def settle(self) -> None:
        """Turn turns into waits."""
        if self.basis:
            has = self._shares > 0
            self.values[has] = (self.turns[has] - self.turns.min()) * self._shares[has]
            self.basis, self._shares = 0, np.zeros(len(has))
            self._prepare()

    def use(self, step: int, shares: Sequence[float]) -> None:
        """Draw under the shares of this step. One share at least is above 0."""
        new = np.array(shares, np.float64)
        if self.basis and np.array_equal(new, self._shares):
            return
        self.settle()
        has = new > 0
        self.values[has] /= new[has]
        self.basis, self._shares = step + 1, new
        self._prepare()

    def record(self, turns: Float64) -> Float64:
        """The values with which and `basis` the rule resumes after `turns`, float64 [..., subsets]."""
        return np.where(self._shares > 0, turns, self.values)
