"""Simulate how often the intervals of `pilekit bpb` miss the truth, by the number of documents.

    python tests/benchmarks/bpb/interval_coverage.py [--simulations 4000] [--json]

A simulated document has a length in bytes, and a number of bits per byte with standard deviation 0.25 among documents
of one length. The truth is the bits of all possible documents divided by their bytes. Each simulation draws a sample of
documents, splits it as `pilekit bpb` does, and checks whether the p-value of the truth is at most 0.05. Then the 95 %
interval does not hold the truth. comparison_coverage.py does so for the differences of `--compare`.

bounded     lengths evenly from 200 to 4,000 bytes, as in PubMed Abstracts or NIH ExPorter
lognormal   heavy tails: the standard deviation of the logarithm is 1.0 (Pile-CC, Wikipedia), 1.5 (Github, ArXiv) or
            2.0, so a few documents hold most of the bytes

`correlation` is that of bits per byte with the logarithm of the length. The mean over all bytes stays the truth.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from pilekit.evaluate.results.intervals import Float64, p_value, split_sums  # noqa: E402

SIZES = (10, 30, 100, 1000)
CORRELATIONS = (0.0, 0.1, 0.2)
AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Lengths:
    """A law of document lengths: `log_mean` is the mean of the logarithm, each byte counting alike."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, int]], Float64]
    log_mean: float


def _evenly(low: float, high: float) -> Lengths:
    def antiderivative(x: float) -> float:  # of x log x
        return x * x / 2 * math.log(x) - x * x / 4

    mean = (antiderivative(high) - antiderivative(low)) / ((high * high - low * low) / 2)
    return Lengths("bounded", lambda draw, shape: draw.uniform(low, high, shape), mean)


def lognormal(sigma: float, middle: float = 2000.0) -> Lengths:
    """Lengths of which a few have most of the bytes."""
    return Lengths(
        f"lognormal {sigma}",
        lambda draw, shape: draw.lognormal(math.log(middle), sigma, shape),
        math.log(middle) + sigma * sigma,
    )


BOUNDED = _evenly(200.0, 4000.0)
LAWS = (BOUNDED, lognormal(1.0), lognormal(1.5), lognormal(2.0))


def compared_variance(sizes: Float64) -> Float64:
    """Of the difference of two models in bits per byte, for documents of these sizes."""
    return 1e-4 + 0.5 / sizes


def variance_alone(sizes: Float64) -> Float64:
    """Of one model's bits per byte."""
    return np.full_like(sizes, 0.25**2)


def sample(
    draw: np.random.Generator,
    lengths: Lengths,
    shape: tuple[int, int],
    correlation: float = 0.0,
    variance: Callable[[Float64], Float64] = compared_variance,
) -> tuple[Float64, Float64]:
    """(bits, bytes) of documents, [simulations, documents]: bits minus their true mean per byte."""
    population = lengths.draw(np.random.default_rng(0), (1, 100_000))
    noise = math.sqrt(float(variance(population).mean()))
    slope = correlation / math.sqrt(1 - correlation**2) * noise / float(np.log(population).std())
    sizes = lengths.draw(draw, shape)
    per_byte = slope * (np.log(sizes) - lengths.log_mean) + np.sqrt(variance(sizes)) * draw.standard_normal(shape)
    return per_byte * sizes, sizes


@cache
def _splits(documents: int, name: str) -> Float64:
    """float64 [documents, 2,000]: 1 where a document is in the first part; fewer splits than in use, to save time."""
    return np.ascontiguousarray(split_sums(np.eye(documents), name)[:, :2000])


def p_values(bits: Float64, sizes: Float64, name: str = "") -> Float64:
    """The p-value of a true figure of 0 for each simulation, [simulations]."""
    found = []
    for begin in range(0, len(bits), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        of_bits, of_sizes = (column[some] @ _splits(bits.shape[1], name) for column in (bits, sizes))
        wholes = zip(bits[some].sum(axis=1), sizes[some].sum(axis=1), strict=True)
        found += [p_value(np.stack(of), whole) for *of, whole in zip(of_bits, of_sizes, wholes, strict=True)]
    return np.array(found)


def misses(
    lengths: Lengths,
    documents: int,
    simulations: int,
    correlation: float = 0.0,
    variance: Callable[[Float64], Float64] = compared_variance,
) -> float:
    """The share of `simulations` samples of `documents` documents whose interval does not contain the truth."""
    draw = np.random.default_rng([1, documents])
    found = p_values(*sample(draw, lengths, (simulations, documents), correlation, variance))
    return float(np.mean(found <= 0.05))


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=4000, help="samples for each figure (default: 4000)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    figures = {}
    for lengths in LAWS:
        for correlation in CORRELATIONS:
            of = {n: misses(lengths, n, chosen.simulations, correlation, variance_alone) for n in SIZES}
            figures[f"{lengths.name}, correlation {correlation}"] = of
            print(f"{lengths.name}, correlation {correlation} is done", file=sys.stderr)
    if chosen.json:
        print(json.dumps(figures))
        return
    print(f"{'documents':>40}" + "".join(f"{documents:>8,}" for documents in SIZES))
    for name, of in figures.items():
        print(f"{name:>40}" + "".join(f"{100 * of[documents]:>7.1f}%" for documents in SIZES))


if __name__ == "__main__":
    main()
