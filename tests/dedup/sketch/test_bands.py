"""Bands: the choice reaches its promised recall, in theory and in measurement."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pilekit.dedup.sketch.bands import Bands, choose_bands
from pilekit.dedup.sketch.minhash import band_keys, permutations, signatures
from pilekit.errors import PilekitError


def test_the_choice_has_the_most_rows_with_which_the_threshold_s_pairs_are_found() -> None:
    assert choose_bands(0.8, 128) == Bands(21, 6)
    assert choose_bands(0.7, 128) == Bands(26, 5)
    assert Bands(21, 6).curve().startswith("21 bands × 6 rows: compares 28.2 % at 0.5, ")
    for threshold, num_perm in ((0, 128), (1.01, 128), (math.nan, 128), (0.8, 0)):
        with pytest.raises(PilekitError):
            choose_bands(threshold, num_perm)
    for num_perm, recall in ((1, 0.9), (16, 0.99), (128, 0.99), (128, 0.999), (256, 0.99)):
        for threshold in (percent / 100 for percent in range(1, 101)):
            counts = [Bands(math.ceil(num_perm / rows), rows) for rows in range(1, num_perm + 1)]
            fit = [bands.rows for bands in counts if bands.probability(threshold) >= recall]
            if not fit:
                with pytest.raises(PilekitError, match="permutations cannot find"):
                    choose_bands(threshold, num_perm, recall)
                continue
            bands = choose_bands(threshold, num_perm, recall)
            assert bands.rows == max(fit)
            assert bands.probability(threshold) >= recall
            # No permutations are left over for another band, and none exceed the last band.
            assert num_perm - bands.rows < bands.num_perm < num_perm + bands.rows


def test_pairs_are_found_as_often_as_promised() -> None:
    """2,000 pairs of documents of each similarity, their signatures and keys."""
    pairs, size = 2000, 40
    for tenths in (5, 7, 8):
        shared = round(2 * size * tenths / (10 + tenths))
        texts = []
        for pair in range(pairs):
            common = [f"c{pair}x{i}" for i in range(shared)]
            texts += [" ".join(common + [f"{side}{pair}x{i}" for i in range(size - shared)]).encode() for side in "ab"]
        data, offsets = np.frombuffer(b"".join(texts), dtype=np.uint8), np.cumsum([0, *map(len, texts)])
        for bands in (choose_bands(0.8, 128), Bands(4, 2)):
            keys = band_keys(signatures(data, offsets, 1, *permutations(bands.num_perm)), bands.bands, bands.rows)
            found = (keys[:, ::2] == keys[:, 1::2]).any(axis=0).mean()
            expected = bands.probability(shared / (2 * size - shared))
            # All pairs have the same permutations, so their errors are correlated: more than the binomial deviation.
            assert abs(found - expected) < 0.02 + 6 * math.sqrt(expected * (1 - expected) / pairs)
