"""The difference of two models on the same documents, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pilekit.display.table_result import Result
from pilekit.evaluate.results.intervals import LEVEL

ROUNDING = 1e-6
"""The relative difference that two scorings of one model may have: batches change how float32 sums are rounded."""

MOST_SKEWNESS, LEAST_EVENNESS = 0.3, 0.25
"""Beyond these an interval may be too narrow; docs/bpb.md has measured how often that errs."""

BETTER, WORSE, UNCLEAR, TOO_FEW = "better", "worse", "not told apart", "too few"
"""The verdicts on a further model."""


@dataclass(frozen=True, slots=True)
class Difference(Result):
    """Two models on the same documents.

    documents    number of documents that all compared models have scored, and their UTF-8 `bytes`
    bpb          bits per byte of the first model and of the further one, on these documents; None if they have no byte
    difference   the further model's minus the first's: below 0 the further model is better
    interval     95 % interval of the difference; None with fewer than ten documents with text, or if
                 all but about three have the same difference per byte
    p            the p-value of no difference, at most 0.05 exactly if the interval does not hold 0; None without one
    adjusted_p   `p` by Holm's method for the subsets compared at once; otherwise `p`
    skewness     |sum r^3| / (sum r^2)^1.5, the skewness of the difference's error without its sign; r is a document's
                 difference in bits minus the mean for its bytes. None without an interval
    evenness     (sum bytes)^2 / (documents with text * sum bytes^2), at most 1: how even the lengths are. None without
                 an interval
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("difference", "interval", "bpb", "documents", "bytes", "p", "adjusted_p", "verdict"),
        *("skewness", "evenness", "approximate=is_approximate"),
    )

    documents: int
    bytes: int
    bpb: tuple[float, float] | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    adjusted_p: float | None = None
    skewness: float | None = None
    evenness: float | None = None

    @property
    def is_approximate(self) -> bool:
        """Whether the interval may be too narrow: few documents decide the difference, or hold most of the bytes."""
        return (self.skewness or 0) > MOST_SKEWNESS or (1 if self.evenness is None else self.evenness) < LEAST_EVENNESS

    @property
    def verdict(self) -> str:
        """The verdict on the further model: "better", "worse", "not told apart" or "too few" documents.

        Better and worse need an adjusted p-value of at most 0.05, and an interval beyond rounding.
        """
        if self.interval is None or self.bpb is None or self.adjusted_p is None:
            return TOO_FEW
        low, high = self.interval
        least = ROUNDING * max(self.bpb)
        if self.adjusted_p > 1 - LEVEL or (low <= least and high >= -least):
            return UNCLEAR
        return BETTER if high < 0 else WORSE


@dataclass(frozen=True, slots=True)
class Against:
    """A further model against the first.

    overall    pooled over all documents
    subsets    in the first result's order
    weighted   weighted by the mixture of the first result's manifest; None if it has no weights
    weight     the compared documents' subsets' share of the mixture, 0 to 1
    """

    overall: Difference
    subsets: dict[str, Difference]
    weighted: Difference | None = None
    weight: float = 0.0
