"""Intervals and p-values of figures that are ratios of sums over documents, from random splits of the documents.

The scored documents are a sample, and another sample would have given another figure. Put each document into one of two
parts by the toss of a coin: the figure of all documents lies between the figures of the parts. Suppose the true figure
is x. Then a document's numerator minus x times its denominator is as likely positive as negative, so a change of its
sign changes nothing in law. The changed sum is as far from 0 as the sum itself, or farther, exactly if x lies between
the figures of the two parts. So the p-value of x is the share of splits with x between the parts, and the 95 % interval
holds each x with a p-value over 0.05. This is the sign-flip test and its inversion. Documents are split, not tokens,
because tokens of one document are not independent.

The test is exact for any number of documents and any lengths if numerators are symmetric around x times denominators:
for two equal models, if each document is as likely to favour one as the other. `docs/bpb.md` has measured coverage.

Coins are the raw bits of PCG64, whose stream NumPy keeps, seeded by the subset's name. Sums are taken in the order of
the documents. So an interval is the same on every machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

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
        some = rows[:, begin : begin + _AT_ONCE]
        eights = np.pad(some, ((0, 0), (0, -some.shape[1] % 8))).reshape(len(rows), -1, 8)
        of_byte = np.zeros((*eights.shape[:2], 1))  # the sum over the documents whose bits are set, for each byte
        for document in range(8):
            of_byte = np.concatenate([of_byte, of_byte + eights[:, :, document, None]], axis=2)
        for group in range(eights.shape[1]):
            drawn = draw.random_raw(SPLITS // 8).astype("<u8").view(np.uint8).astype(np.intp)
            for row, table in zip(sums, of_byte[:, group], strict=True):
                row += table.take(drawn)
    return sums


def interval(sums: Float64, whole: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a figure; None if it is unbounded, because one document has almost the whole denominator.

    sums    float64 [2, splits]: numerator and denominator of the first parts
    whole   the same of all documents
    """
    low, high = _parts(sums, whole)
    end = int((1 - LEVEL) * (len(low) + 1)) - 1
    found = float(np.partition(low, end)[end]), float(-np.partition(-high, end)[end])
    return found if np.isfinite(found).all() else None


def p_value(sums: Float64, whole: Sequence[float]) -> float:
    """The p-value of 0, at most 0.05 exactly if the interval does not hold 0; arguments as for `interval`."""
    low, high = _parts(sums, whole)
    rounding = 1e-12 * np.maximum(abs(low), abs(high))
    return (1 + int(np.count_nonzero((low <= rounding) & (high >= -rounding)))) / (len(low) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: if values up to 0.05 are findings, 95 % of families have no false finding."""
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=lambda number: p_values[number])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = least
    return adjusted


def _parts(sums: Float64, whole: Sequence[float]) -> tuple[Float64, Float64]:
    """The lower and the higher figure of the two parts of each split; infinite if a part is empty."""
    both = np.stack([sums, np.asarray(whole)[:, None] - sums], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = both[0] / both[1]
    empty = both[1].min(axis=0) <= 1e-9 * whole[1]  # the other part is a difference, which is rounded
    return np.where(empty, -np.inf, figures.min(axis=0)), np.where(empty, np.inf, figures.max(axis=0))
