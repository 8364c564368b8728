"""The recall of a deduplication, measured: how many pairs of known similarity its bands would compare.

Pairs that the run found say nothing about pairs that it missed. So new pairs are made: words of the corpus's own texts
are replaced at random, the similarity of each copy to its text is computed exactly, and both get signatures as in the
run. A pair is found if all values of a band agree. The copies are a function of the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.minhash import permutations, signatures
from pilekit.dedup.sketch.shingles import jaccard, shingle_set

LOWEST, WIDTH = 0.4, 0.05
"""Copies of at least this similarity are counted, in bins of this width."""
COPIES = 60
"""Edited copies of each text."""
_LONGEST, _FEWEST_WORDS = 20_000, 30


class Measured(NamedTuple):
    """Pairs of about this mean similarity: how many there are, and how many of them have an equal band."""

    similarity: float
    pairs: int
    found: int


def intervals(measured: Sequence[Measured]) -> npt.NDArray[np.float64]:
    """Wilson's 95 % intervals of the shares that are found, [low or high, measured]."""
    _, pairs, found = np.array(measured).T
    z, share = 1.96**2 / pairs, found / pairs
    middle, half = share + z / 2, np.sqrt(z * share * (1 - share) + z * z / 4)
    found_between: npt.NDArray[np.float64] = np.stack([middle - half, middle + half]) / (1 + z)
    return found_between


def measured_recall(texts: Iterable[str], bands: Bands, ngram: int, seed: int) -> list[Measured]:
    """The measured recall by similarity; empty if no text has enough words."""
    generator = np.random.default_rng(0)
    a, b = permutations(bands.num_perm, seed)
    similarities, found = [], []
    for text in texts:
        words = text[:_LONGEST].split()
        if len(words) < _FEWEST_WORDS:
            continue
        targets = generator.uniform(LOWEST, 1, COPIES)
        copies = [" ".join(words)]
        for kept in (2 * targets / (1 + targets)) ** (1 / ngram):  # An n-gram stays if all of its words do.
            changed = generator.random(len(words)) >= kept
            new = generator.integers(1 << 40, size=len(words)).tolist()
            copies.append(" ".join(f"w{new[i]:x}" if changed[i] else word for i, word in enumerate(words)))
        encoded = [np.frombuffer(copy.encode(), dtype=np.uint8) for copy in copies]
        offsets = np.cumsum([0, *map(len, encoded)])
        values = signatures(np.concatenate(encoded), offsets, ngram, a, b).reshape(-1, bands.bands, bands.rows)
        found += (values[1:] == values[0]).all(axis=2).any(axis=1).tolist()
        original, *sets = (shingle_set(copy, ngram) for copy in encoded)
        similarities += [jaccard(original, one) for one in sets]
    of, hits = np.array(similarities), np.array(found)
    places = np.floor((of - LOWEST) / WIDTH)
    by_place = [places == place for place in np.unique(places[places >= 0])]
    return [Measured(float(of[at].mean()), int(at.sum()), int(hits[at].sum())) for at in by_place]
