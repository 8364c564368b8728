"""`Draws`: which subset gives a lane's next document, so that each subset has its share of the lane's tokens.

Each subset has a number, its *turn*: the lane's token, counted in the lane's own time, at which its next document is
due. The lane takes a document of the subset with the earliest turn, the first by name of equal ones. A document of n
tokens of a subset with share w moves that subset's turn n / w tokens on. So after T tokens each subset has had w * T of
them, up to about a document of its own and one of another subset, wherever one begins to count. This is start-time fair
queueing (Goyal, Vin, Cheng 1996), known from networks, with documents for packets.

When shares change, a turn is worth other tokens. What stays is the *wait*: the tokens of its own that a subset is ahead
of its share, (turn - earliest turn) * w. A subset without a share keeps its wait until it has one again.

At the beginning, all subsets' turns would be 0 in all lanes, so every lane would read a book first. Instead a subset
waits u * m tokens, where m is the length of the document in which a token of the subset lies on average, and u is
spread evenly over the lanes, from 0 to 1. That is the wait at which one would find a lane that has run for long. So the
shares hold from the first step on.

Turns are float64 numbers. All that is done with them is +, -, * and /, one after another, which every machine rounds
alike. So the rule has the same result everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf


class Draws:
    """The turns of one lane.

    basis   0: `values` are waits, in tokens; s + 1: they are turns, under the shares of step s
    values  one per subset. Under shares of a step, a subset without a share has its wait here
    turns   the turns of subsets with a share, inf for others: what `min` looks at
    rates   how far a token of a subset moves its turn
    """

    def __init__(self, basis: int, values: Sequence[float], shares: Sequence[float] = ()) -> None:
        self.basis, self.values = basis, list(values)
        self._shares = tuple(shares) if basis else (0.0,) * len(values)
        self._prepare()

    def _prepare(self) -> None:
        self.turns = [value if share else inf for value, share in zip(self.values, self._shares, strict=True)]
        self.rates = [1 / share if share else 0.0 for share in self._shares]

    def settle(self) -> None:
        """Turn turns into waits."""
        if self.basis:
            earliest = min(self.turns)
            pairs = zip(self.turns, self.values, self._shares, strict=True)
            self.values = [(turn - earliest) * share if share else value for turn, value, share in pairs]
            self.basis, self._shares = 0, (0.0,) * len(self.values)
            self._prepare()

    def use(self, step: int, shares: Sequence[float]) -> None:
        """Draw under the shares of this step. One share at least is above 0."""
        shares = tuple(shares)
        if self.basis and shares == self._shares:
            return
        self.settle()
        pairs = zip(self.values, shares, strict=True)
        self.values = [value / share if share else value for value, share in pairs]
        self.basis, self._shares = step + 1, shares
        self._prepare()

    def next(self) -> int:
        """The subset that gives the next document."""
        return self.turns.index(min(self.turns))

    def took(self, subset: int, tokens: int) -> None:
        """Count a document of `subset` with so many tokens, EOD counted."""
        self.turns[subset] += tokens * self.rates[subset]

    def record(self) -> list[float]:
        """The values, with which and `basis` the rule resumes."""
        return [
            turn if share else value for turn, value, share in zip(self.turns, self.values, self._shares, strict=True)
        ]
