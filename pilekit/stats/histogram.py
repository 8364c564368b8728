"""Counts of sizes in fixed bins, which give every quantile within 1 %.

Sizes below 128 have a bin each. Above, every doubling is cut into 64 bins of equal width, so a bin that starts at
`low` is at most `low / 64` wide, and its middle is within `low / 128` of every size in it: an error of at most 0.79 %.
Interpolation between two bins, as in quantiles, keeps this bound. 1,984 bins reach from 0 to 64 GiB, so memory does not
grow with the corpus, and histograms of shards add up exactly.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

BINS_PER_DOUBLING = 64
LARGEST = 2**36 - 1
"""Larger sizes are counted in the last bin."""

RELATIVE_ERROR = 1 / (2 * BINS_PER_DOUBLING)
"""The bound for quantiles from the histogram against exact quantiles."""


def bin_of(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bin of each size; int64 of any shape, sizes >= 0."""
    sizes = np.minimum(sizes, LARGEST)
    # The exponent of a float64 and the next six bits, side by side, are the bin plus an offset.
    leading = sizes.astype(np.float64).view(np.int64) >> (52 - 6)
    return np.where(sizes < BINS_PER_DOUBLING, sizes, leading - (1023 + 5) * BINS_PER_DOUBLING)


BINS = int(bin_of(np.array([LARGEST]))[0]) + 1


def middle_of(bins: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The value that stands for all sizes in each bin; exact below 128."""
    shift = np.maximum(bins // BINS_PER_DOUBLING - 1, 0)
    low = (bins - shift * BINS_PER_DOUBLING) << shift
    middles: npt.NDArray[np.float64] = low + ((np.int64(1) << shift) - 1) / 2
    return middles


def quantile(counts: npt.NDArray[np.int64], fraction: float) -> float:
    """The quantile of the sizes counted in `counts` (int64 [BINS]), as `numpy.quantile` defines it by default.

    This is the size at position `fraction * (number - 1)` in sorted order, interpolated between its neighbours, within
    `RELATIVE_ERROR` of the exact value. `nan` where nothing is counted.
    """
    ends = np.cumsum(counts)
    number = int(ends[-1])
    if not number:
        return math.nan
    position = fraction * (number - 1)
    neighbours = np.array([math.floor(position), math.ceil(position)])
    below, above = middle_of(np.searchsorted(ends, neighbours, side="right"))
    return float(below + (above - below) * (position - neighbours[0]))
