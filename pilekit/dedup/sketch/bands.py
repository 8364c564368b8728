"""Bands and rows: which similarities make two documents a candidate pair.

A signature is cut into bands of `rows` values. Two documents are compared if all values of some band are equal. With
Jaccard similarity s, the probability is 1 - (1 - s^rows)^bands. Every candidate is compared exactly afterwards, so the
choice costs no precision, and is made for recall at the threshold. (The usual rule weighs recall and precision equally,
and with 128 permutations finds 40 % of the pairs at 0.8.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilekit.errors import PilekitError

RECALL = 0.99


@dataclass(frozen=True)
class Bands:
    """A signature of bands x rows permutations."""

    bands: int
    rows: int

    @property
    def num_perm(self) -> int:
        """Number of permutations."""
        return self.bands * self.rows

    def probability(self, similarity: float) -> float:
        """Probability that two documents of this Jaccard similarity are compared."""
        return 1 - (1 - similarity**self.rows) ** self.bands

    def curve(self) -> str:
        """The choice and its recall, in one line."""
        chances = ", ".join(f"{100 * self.probability(tenth / 10):.3g} % at {tenth / 10}" for tenth in range(5, 10))
        return f"{self.bands} bands × {self.rows} rows: compares {chances} similarity"


def choose_bands(threshold: float, num_perm: int) -> Bands:
    """The bands with the most rows that still find a pair at the threshold with a probability of 0.99.

    More rows mean fewer candidates. The last band may need a few permutations more than `num_perm`; permutations that
    are left over make further bands.
    """
    if not 0 < threshold <= 1:
        raise PilekitError(f"the threshold is a similarity above 0 and up to 1, not {threshold}")
    if num_perm < 1:
        raise PilekitError(f"num_perm must be at least 1, not {num_perm}")
    for rows in range(num_perm, 0, -1):
        for bands in (num_perm // rows, math.ceil(num_perm / rows)):
            chosen = Bands(bands, rows)
            if chosen.probability(threshold) >= RECALL:
                return chosen
    raise PilekitError(
        f"{num_perm} permutations cannot find pairs of similarity {threshold} with a probability of {RECALL}; use "
        "more of them, or a higher threshold"
    )
