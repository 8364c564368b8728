"""Simulate how often the interval of `pilekit bpb --compare` misses the true difference, and how often `~` marks it.

    python tests/benchmarks/bpb/comparison_coverage.py [--simulations 4000] [--json]

A simulated document has a length in bytes and a difference of two models in bits per byte. The truth is the difference
over all bytes of all possible documents, 0 here: an effect moves sample and interval alike. An interval that misses 0
is both a missed truth and a false verdict. A law and its mirror image miss alike: the method turns with the sign.

kinds     lengths evenly from 200 to 4,000 bytes, and differences of one law for all lengths
lengths   lognormal lengths, and normal differences whose correlation with the logarithm of the length is given; what
          the other model gains on long documents it loses on short ones

`width` is the median width of the intervals, divided by that of Student's t on the same documents.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from pilekit.evaluate.results.difference import LEAST_EVENNESS, MOST_SKEWNESS  # noqa: E402
from pilekit.evaluate.results.intervals import (  # noqa: E402
    UNITS,
    Float64,
    Resampled,
    interval,
    resamples,
    split_sums,
)
from tests.benchmarks.bpb.interval_coverage import lognormal, sample  # noqa: E402

SIZES = (10, 20, 30, 50, 100, 300, 1000)
DRAWS = 2000
"""Splits and resamples of each sample: fewer than in use, to save time."""
AT_ONCE = 500

Law = Callable[[np.random.Generator, tuple[int, int]], tuple[Float64, Float64]]
"""(bits, bytes) of documents, [simulations, documents]."""


def _kind(per_byte: Callable[[np.random.Generator, tuple[int, int]], Float64]) -> Law:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Float64, Float64]:
        sizes = rng.uniform(200, 4000, shape)
        return sizes * per_byte(rng, shape), sizes

    return draw


def _skewed(sigma: float) -> Law:
    return _kind(lambda rng, shape: rng.lognormal(0, sigma, shape) - math.exp(sigma * sigma / 2))


def _lengths(sigma: float, correlation: float) -> Law:
    return lambda rng, shape: sample(rng, lognormal(sigma), shape, correlation)


LAWS: dict[str, Law] = {
    "normal": _kind(lambda rng, shape: rng.standard_normal(shape)),
    "Laplace": _kind(lambda rng, shape: rng.laplace(size=shape)),
    "t(3)": _kind(lambda rng, shape: rng.standard_t(3, shape)),
    "t(2)": _kind(lambda rng, shape: rng.standard_t(2, shape)),
    "5 % at 10 sigma": _kind(lambda rng, shape: rng.standard_normal(shape) * np.where(rng.random(shape) < 0.05, 10, 1)),
    "exponential": _kind(lambda rng, shape: rng.exponential(1, shape) - 1),
    "lognormal 0.5": _skewed(0.5),
    "lognormal 1.0": _skewed(1.0),
    "lognormal 1.5": _skewed(1.5),
    **{f"lengths {sigma}, {r}": _lengths(sigma, r) for sigma in (1.0, 1.5) for r in (0.0, 0.1, 0.2)},
    "lengths 2.0, 0.1": _lengths(2.0, 0.1),
}


class Cell(NamedTuple):
    """Shares of a law's samples, and the relative width of the median interval."""

    missed: float
    marked: float
    width: float


@cache
def _drawn(documents: int) -> tuple[Float64, Float64]:
    """float64 [documents, DRAWS] each: 1 where a document is in the first part of a split; its copies in a resample."""
    splits = np.ascontiguousarray(split_sums(np.eye(documents))[:, :DRAWS])
    units = resamples(min(documents, UNITS))[:, :DRAWS].astype(np.float64)
    return splits, np.ascontiguousarray(units)


def simulate(law: Law, documents: int, simulations: int, seed: int = 0) -> Cell:
    """What the intervals of so many samples of `documents` documents do."""
    rng = np.random.default_rng([seed, documents])
    shapes = [(min(AT_ONCE, simulations - begin), documents) for begin in range(0, simulations, AT_ONCE)]
    missed, marked, width = np.concatenate([_outcomes(*law(rng, shape)) for shape in shapes], axis=1)
    return Cell(float(missed.mean()), float(marked.mean()), float(np.median(width)))


def _outcomes(bits: Float64, sizes: Float64) -> Float64:
    """float64 [3, samples]: whether the interval misses 0, whether it is marked, its width over that of t."""
    splits, resampled = _drawn(bits.shape[1])
    of_splits, wholes = np.stack([bits @ splits, sizes @ splits], axis=1), np.stack([bits.sum(1), sizes.sum(1)], axis=1)
    units = np.zeros((2, len(bits), len(resampled)))
    for begin in range(0, bits.shape[1], len(resampled)):
        some = np.stack([bits, sizes])[:, :, begin : begin + len(resampled)]
        units[:, :, : some.shape[2]] += some
    figure = wholes[:, 0] / wholes[:, 1]
    rest, size = units[0] - figure[:, None] * units[1], units[1]
    sums = [column @ resampled for column in (rest, size, rest * rest, rest * size, size * size)]
    shift, correction = sums[0] / sums[1], len(resampled) / (len(resampled) - 1)
    squares = np.maximum(sums[2] - 2 * shift * sums[3] + shift * shift * sums[4], 1e-12 * sums[2] + 1e-300)
    quotients = np.sort(shift * sums[1] / np.sqrt(squares * correction), axis=1)
    error = np.sqrt((rest * rest).sum(1) * correction) / wholes[:, 1]
    residuals = bits - figure[:, None] * sizes
    skewness = abs((residuals**3).sum(1)) / (residuals**2).sum(1) ** 1.5
    evenness = sizes.sum(1) ** 2 / (sizes.shape[1] * (sizes**2).sum(1))
    rows = []
    for which in range(len(bits)):
        spans = (
            interval(of_splits[which], wholes[which]),
            Resampled(figure[which], error[which], quotients[which]).interval(),
        )
        low, high = (math.nan, math.nan) if None in spans else (min(spans)[0], max(span[1] for span in spans))
        marked = skewness[which] > MOST_SKEWNESS or evenness[which] < LEAST_EVENNESS
        rows.append((not low <= 0 <= high, marked, (high - low) / (2 * _t(bits.shape[1]) * error[which])))
    return np.array(rows).T


def _t(documents: int) -> float:
    """The 97.5 % quantile of Student's t, by Cornish and Fisher; right to 0.1 % from 10 documents on."""
    z, freedom = 1.959964, documents - 1
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2) + third / freedom**3


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=4000, help="samples for each figure (default: 4000)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    cells: dict[str, dict[int, Cell]] = {}
    for name, law in LAWS.items():
        cells[name] = {documents: simulate(law, documents, chosen.simulations) for documents in SIZES}
        print(f"{name} is done", file=sys.stderr)
    if chosen.json:
        print(json.dumps({name: {n: cell._asdict() for n, cell in of.items()} for name, of in cells.items()}))
        return
    print("missed / marked / width, by documents")
    print(f"{'':>16}" + "".join(f"{documents:>20,}" for documents in SIZES))
    for name, of in cells.items():
        shown = (f"{100 * cell.missed:.1f}% / {100 * cell.marked:.0f}% / {cell.width:.2f}" for cell in of.values())
        print(f"{name:>16}" + "".join(f"{one:>20}" for one in shown))
    all_cells = [cell for of in cells.values() for cell in of.values()]
    narrow = [1 - cell.marked for cell in all_cells if cell.missed > 0.07]
    right = [cell.marked for cell in all_cells if cell.missed <= 0.07]
    print(f"missed at most 6 %: {sum(cell.missed <= 0.06 for cell in all_cells)} of {len(all_cells)} cells")
    print(f"missed at most 7 %: {len(right)}, of whose intervals {100 * np.mean(right):.0f} % are marked")
    print(f"missed more: {len(narrow)}, of whose intervals {100 * np.mean(narrow):.0f} % are not marked")


if __name__ == "__main__":
    main()
