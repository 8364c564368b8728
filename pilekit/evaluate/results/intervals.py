"""Intervals of figures that are ratios of sums over documents, by resampling documents.

The scored documents are a sample. As many documents are drawn from it, with replacement, and the figure is computed
for them. The middle 95 % of 1,000 such figures are the interval (the percentile bootstrap). Documents are drawn, not
tokens, because tokens of one document are not independent. Numerator and denominator of a ratio come from the same
draws, and so do the sums of compared models.

Draws come from a counter (SplitMix64: draw i of replicate r is a hash of seed, r and i), and sums are taken in the
order of the documents. So an interval is the same to the last bit on every machine. The kernel first counts how often
each document was drawn, in a block that the cache holds, and then reads the columns once in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.kernels import compiled

SEED = 20_210_101
REPLICATES = 1000
LEVEL = 0.95

Float64 = npt.NDArray[np.float64]


METHOD = {"method": "percentile bootstrap over documents", "level": LEVEL, "replicates": REPLICATES, "seed": SEED}
"""The method of the intervals, for the protocol."""


def resampled_sums(columns: Float64, *, seed: int = SEED, replicates: int = REPLICATES) -> Float64:
    """The sums of each column over samples of the documents, each as many as there are, drawn with replacement.

    columns      float64 [documents, columns]: the values to sum, a row per document
    seed         any whole number; the same gives the same draws
    replicates   number of samples

    Returns float64 [replicates, columns]. All columns of a replicate are sums over the same draws. All documents are
    equally likely, to within documents / 2^32.
    """
    rows = np.ascontiguousarray(columns, dtype=np.float64)
    sums = np.zeros((replicates, rows.shape[1]))
    if len(rows):
        _resample(rows, np.uint64(seed % (1 << 64)), sums)
    return sums


def interval(values: Float64, level: float = LEVEL) -> tuple[float, float] | None:
    """The middle `level` of the resampled figures that are finite (a sample without a byte has none).

    None if fewer than half of them are finite.
    """
    finite = values[np.isfinite(values)]
    if 2 * len(finite) < len(values) or not len(finite):
        return None
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratios(sums: Float64) -> Float64:
    """First column over the second, [replicates]; NaN where the second is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], np.nan)


@compiled("uint64(uint64)")
def _mixed(value: np.uint64) -> np.uint64:
    """SplitMix64's finalizer: every bit of the value stirs every bit of the result."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled("void(float64[:, ::1], uint64, float64[:, ::1])")
def _resample(rows: Float64, seed: np.uint64, sums: Float64) -> None:
    documents, columns = rows.shape
    step = np.uint64(0x9E3779B97F4A7C15)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    many = np.uint64(documents)
    drawn = np.zeros(documents, dtype=np.uint32)
    for replicate in range(len(sums)):
        state = _mixed(_mixed(seed + step) + np.uint64(replicate) * step)
        drawn[:] = 0
        for _ in range(documents // 2):  # two draws of 32 bits each
            state += step
            bits = _mixed(state)
            drawn[((bits & low) * many) >> half] += np.uint32(1)
            drawn[((bits >> half) * many) >> half] += np.uint32(1)
        if documents % 2:
            state += step
            drawn[((_mixed(state) & low) * many) >> half] += np.uint32(1)
        for document in range(documents):
            times = np.float64(drawn[document])
            for column in range(columns):
                sums[replicate, column] += times * rows[document, column]
