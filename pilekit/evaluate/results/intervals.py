"""Intervals and p-values of figures that are ratios of sums over documents, from random splits and resamples of them.

The scored documents are a sample, and another sample would have given another figure. Put each document into one of two
parts by the toss of a coin: the figure of all documents lies between the figures of the parts. Suppose the true figure
is x. Then a document's numerator minus x times its denominator is as likely positive as negative, so a change of its
sign changes nothing in law. The changed sum is as far from 0 as the sum itself, or farther, exactly if x lies between
the figures of the two parts. So the p-value of x is the share of splits with x between the parts, and the 95 % interval
holds each x with a p-value over 0.05. This is the sign-flip test and its inversion. Documents are split, not tokens,
because tokens of one document are not independent.

The test is exact for any number of documents and any lengths if numerators are symmetric around x times denominators:
for two equal models, if each document is as likely to favour one as the other. `docs/bpb.md` has measured coverage.

For differences of two models that is not enough. If B loses a little on most documents and gains much on few, a sample
without the few has both a wrong figure and a small spread, which the test believes. `Resampled` measures how figure and
spread err together: it draws the documents anew, with replacement, and divides the error of each resample's figure by
the resample's own standard error (the studentised bootstrap). Its p-value of x is the share of resamples whose quotient
is as far out as that of x: twice the share on that side, or the share on both sides, whichever is greater. The first
follows skewed differences, the second long-tailed lengths.

Coins and draws are the raw bits of PCG64, whose stream NumPy keeps; coins are seeded by the subset's name. Sums are
taken in the order of the documents, without BLAS. So an interval is the same on every machine.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

SEED = 20_210_101
SPLITS = 10_000
LEVEL = 0.95
FEWEST = 10
"""Fewer documents with text have no interval: so few coins often fall alike."""

Float64 = npt.NDArray[np.float64]

METHOD = {"method": "inverted sign-flip test over documents", "level": LEVEL, "splits": SPLITS, "seed": SEED}
"""The method of the intervals, for the protocol."""

UNITS = 250
"""More documents are resampled as this many groups; their sums have the same skewness and spread over all."""

_AT_ONCE = 1024
"""Documents handled at a time; eight of them need a table of 2 KiB for each row."""


def split_sums(rows: Float64, name: str = "") -> Float64:
    """The sums of each row over the first part of each split.

    rows  float64 [n, documents]
    name  the subset's, which seeds its splits

    Returns float64 [n, SPLITS]. All rows are split alike.
    """
    draw = np.random.PCG64([SEED, zlib.crc32(name.encode(errors="surrogatepass"))])
    sums = np.zeros((len(rows), SPLITS))
    for begin in range(0, rows.shape[1], _AT_ONCE):
        piece = rows[:, begin : begin + _AT_ONCE]
        eights = np.pad(piece, ((0, 0), (0, -piece.shape[1] % 8))).reshape(len(rows), -1, 8)
        sums_of_byte = np.zeros((*eights.shape[:2], 1))  # the sum over the documents whose bits are set, for each byte
        for document in range(8):
            sums_of_byte = np.concatenate([sums_of_byte, sums_of_byte + eights[:, :, document, None]], axis=2)
        for group in range(eights.shape[1]):
            drawn = draw.random_raw(SPLITS // 8).astype("<u8").view(np.uint8).astype(np.intp)
            for row, table in zip(sums, sums_of_byte[:, group], strict=True):
                row += table.take(drawn)
    return sums


def interval(sums: Float64, whole: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a figure; None if it is unbounded, because one document has almost the whole denominator.

    sums    float64 [2, splits]: numerator and denominator of the first parts
    whole   numerator and denominator of all documents
    """
    low, high = _parts(sums, whole)
    end = int((1 - LEVEL) * (len(low) + 1)) - 1
    limits = float(np.partition(low, end)[end]), float(-np.partition(-high, end)[end])
    return limits if np.isfinite(limits).all() else None


def p_value(sums: Float64, whole: Sequence[float]) -> float:
    """The p-value of 0, at most 0.05 exactly if the interval does not hold 0; arguments as for `interval`."""
    low, high = _parts(sums, whole)
    rounding = 1e-12 * np.maximum(abs(low), abs(high))
    return (1 + int(np.count_nonzero((low <= rounding) & (high >= -rounding)))) / (len(low) + 1)


@dataclass(frozen=True, slots=True)
class Resampled:
    """The studentised bootstrap of a figure.

    figure      numerator / denominator of all documents
    error       its standard error; 0 if all documents have the same figure
    quotients   float64 [resamples], in order: the error of each resample's figure / its own standard error; infinite if
                its documents all have the same figure
    """

    figure: float
    error: float
    quotients: Float64

    @classmethod
    def of(cls, numerators: Float64, denominators: Float64) -> Resampled:
        """`numerators` and `denominators`: float64 [documents]."""
        units = min(UNITS, len(numerators))
        group = np.arange(len(numerators)) % units
        top, size = (np.bincount(group, sums, units).astype(np.float64) for sums in (numerators, denominators))
        figure = total(top) / total(size)
        residuals = top - figure * size
        columns = np.stack([residuals, size, residuals * residuals, residuals * size, size * size])
        sums = np.zeros((len(columns), SPLITS))
        for counts, values in zip(resamples(units), columns.T, strict=True):
            sums += values[:, None] * counts.astype(np.float64)
        correction = units / (units - 1)
        error = math.sqrt(total(columns[2]) * correction) / total(size)
        if error <= 1e-12 * total(abs(top)) / total(size):
            return cls(figure, 0.0, np.zeros(SPLITS))
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = sums[0] / sums[1]
            terms = sums[2], -2 * shift * sums[3], shift * shift * sums[4]
            squares = terms[0] + terms[1] + terms[2]
            squares[squares <= 1e-12 * (terms[0] + terms[2])] = 0  # rounding leaves a little of a sum that is 0
            quotients = shift * sums[1] / np.sqrt(squares * correction)
        quotients[np.isnan(quotients)] = 0
        return cls(figure, error, np.sort(quotients))

    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; None if it is unbounded, because the figure of all documents but a few is the same."""
        if not self.error:
            return self.figure, self.figure
        outside, beyond = (int(share * (len(self.quotients) + 1)) for share in (1 - LEVEL, (1 - LEVEL) / 2))
        two_sided = np.sort(abs(self.quotients))[-outside]
        low, high = max(self.quotients[-beyond], two_sided), min(self.quotients[beyond - 1], -two_sided)
        limits = self.figure - float(low) * self.error, self.figure - float(high) * self.error
        return limits if np.isfinite(limits).all() else None

    def p_value(self) -> float:
        """The p-value of 0, at most 0.05 exactly if the interval does not hold 0."""
        if not self.error:
            return 1.0 if self.figure == 0 else 1 / (len(self.quotients) + 1)
        at = self.figure / self.error
        above, below, outside = (
            int(np.count_nonzero(far))
            for far in (self.quotients >= at, self.quotients <= at, abs(self.quotients) >= abs(at))
        )
        return min(1.0, max(2 * (1 + min(above, below)), 1 + outside) / (len(self.quotients) + 1))


@lru_cache(maxsize=2)
def resamples(units: int) -> npt.NDArray[np.uint8]:
    """uint8 [units, SPLITS]: how often each unit is in each resample of as many, drawn with replacement."""
    draw = np.random.PCG64([SEED, units])
    counts = np.zeros((units, SPLITS), np.uint8)
    places = np.arange(SPLITS)
    for _ in range(units):
        drawn = draw.random_raw(SPLITS // 2).astype("<u8").view("<u4").astype(np.uint64)
        counts[(drawn * np.uint64(units) >> np.uint64(32)).astype(np.intp), places] += 1
    return counts


def total(values: Float64) -> float:
    """The exact sum, rounded once."""
    return math.fsum(values.tolist())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: if values up to 0.05 are findings, 95 % of families have no false finding."""
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=lambda number: p_values[number])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = least
    return adjusted


def _parts(sums: Float64, whole: Sequence[float]) -> tuple[Float64, Float64]:
    """The lower and the higher figure of the two parts of each split; infinite if a part is empty."""
    parts = np.stack([sums, np.asarray(whole)[:, None] - sums], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = parts[0] / parts[1]
    empty = parts[1].min(axis=0) <= 1e-9 * whole[1]  # the other part is a difference, which is rounded
    return np.where(empty, -np.inf, figures.min(axis=0)), np.where(empty, np.inf, figures.max(axis=0))
