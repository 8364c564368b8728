"""Simulate how often the intervals of `pilekit bpb` contain the truth, by the number of documents.

    python tests/benchmarks/interval_coverage.py [--simulations 4000] [--json]

A simulated document has a length in bytes and a number of bits per byte. Bits per byte are drawn around a mean that
falls with the logarithm of the length, because longer documents are easier. The truth is the bits of all possible
documents divided by their bytes. Each simulation draws a sample of documents, makes the interval as `pilekit bpb` does
(1,000 resamples), and checks whether it contains the truth.

bounded     lengths evenly from 200 to 4,000 bytes, as in PubMed Abstracts or NIH ExPorter
lognormal   heavy tails: the standard deviation of the logarithm is 1.0 (Pile-CC, Wikipedia) or 1.5 (Github, ArXiv), so
            a few documents hold most of the bytes
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, from any folder

from pilekit.evaluate.results.intervals import Float64, interval, ratios, resampled_sums  # noqa: E402

SIZES = (30, 100, 300, 1000, 3000)
SLOPE, SPREAD = -0.05, 0.25
"""Bits per byte for each factor of e in length, and their standard deviation among documents of one length."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A law of document lengths: `log_mean` is the mean of the logarithm, each byte counting alike."""

    name: str
    draw: Callable[[np.random.Generator, int], Float64]
    log_mean: float


def _evenly(low: float, high: float) -> Lengths:
    def antiderivative(x: float) -> float:  # of x log x
        return x * x / 2 * math.log(x) - x * x / 4

    mean = (antiderivative(high) - antiderivative(low)) / ((high * high - low * low) / 2)
    return Lengths("bounded", lambda draw, count: draw.uniform(low, high, count), mean)


def _lognormal(sigma: float, middle: float = 2000.0) -> Lengths:
    return Lengths(
        f"lognormal {sigma}",
        lambda draw, count: draw.lognormal(math.log(middle), sigma, count),
        math.log(middle) + sigma * sigma,
    )


BOUNDED = _evenly(200.0, 4000.0)
HEAVY, HEAVIER = _lognormal(1.0), _lognormal(1.5)


def coverage(lengths: Lengths, *, documents: int, simulations: int, seed: int) -> float:
    """The share of `simulations` samples of `documents` documents whose interval contains the truth."""
    draw = np.random.default_rng([seed, documents])
    held = 0
    for number in range(simulations):
        sizes = lengths.draw(draw, documents)
        # Around the mean over all bytes, so that the truth is 1 whatever the law.
        bits = 1 + SLOPE * (np.log(sizes) - lengths.log_mean) + SPREAD * draw.standard_normal(documents)
        found = interval(ratios(resampled_sums(np.column_stack([bits * sizes, sizes]), seed=number)))
        held += found is not None and found[0] <= 1 <= found[1]
    return held / simulations


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=4000, help="samples for each figure (default: 4000)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    figures = {
        lengths.name: {
            documents: coverage(lengths, documents=documents, simulations=chosen.simulations, seed=1)
            for documents in SIZES
        }
        for lengths in (BOUNDED, HEAVY, HEAVIER)
    }
    if chosen.json:
        print(json.dumps(figures))
        return
    print(f"{'documents':>14}" + "".join(f"{documents:>8,}" for documents in SIZES))
    for name, of in figures.items():
        print(f"{name:>14}" + "".join(f"{100 * of[documents]:>7.1f}%" for documents in SIZES))


if __name__ == "__main__":
    main()
