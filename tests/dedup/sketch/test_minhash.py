"""Signatures are datasketch's, bit for bit; band keys are equal only for equal rows; the choice of bands."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from datasketch import MinHash
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.sketch.bands import Bands, choose_bands
from pilekit.dedup.sketch.minhash import SHINGLES_AT_A_TIME, band_keys, permutations, signatures
from pilekit.dedup.sketch.shingles import shingle_set
from pilekit.errors import PilekitError
from tests.dedup import reference


def joined(texts: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum([0, *map(len, encoded)])


def datasketch_signature(text: str, ngram: int, num_perm: int, seed: int) -> list[int]:
    sketch = MinHash(num_perm, seed, scheme="affine32", hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
    for shingle in shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram).tolist():
        sketch.update(shingle)
    return sketch.hashvalues.tolist()


@given(
    st.lists(st.one_of(st.text(max_size=50), st.text("ab \u00e9", max_size=200)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.sampled_from([1, 2, 5, 126, 128, 130]),
    st.integers(0, 2**32 - 1),
)
def test_signatures_equal_datasketch_s(texts: list[str], ngram: int, num_perm: int, seed: int) -> None:
    found = signatures(*joined(texts), ngram, *permutations(num_perm, seed))
    assert found.dtype == np.uint32
    assert found.tolist() == [datasketch_signature(text, ngram, num_perm, seed) for text in texts]


def test_a_document_may_have_more_shingles_than_are_taken_at_a_time() -> None:
    for count in (SHINGLES_AT_A_TIME - 1, SHINGLES_AT_A_TIME, SHINGLES_AT_A_TIME + 1, 2 * SHINGLES_AT_A_TIME):
        texts = ["before", " ".join(map(str, range(count + 4))), "behind it"]
        assert len(reference.shingles(texts[1])) == count
        found = signatures(*joined(texts), 5, *permutations(16))
        assert found.tolist() == [datasketch_signature(text, 5, 16, 1) for text in texts]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_keys_are_equal_exactly_where_all_rows_of_the_band_are(rows: int, bands: int, seed: int) -> None:
    values = np.random.default_rng(seed).choice(np.array([0, 1, 2**32 - 1], dtype=np.uint32), (8, rows * bands))
    keys = band_keys(values, bands, rows)
    assert keys.shape == (bands, 8)
    for band in range(bands):
        part = values[:, band * rows : (band + 1) * rows]
        equal = (part[:, None] == part[None]).all(axis=2)
        assert ((keys[band][:, None] == keys[band][None]) == equal).all()
    many = np.random.default_rng(seed).integers(0, 2**32, (20_000, rows), dtype=np.uint32)
    assert len(np.unique(band_keys(many, 1, rows)[0])) == len(np.unique(many, axis=0))


def test_the_choice_has_the_most_rows_with_which_the_threshold_s_pairs_are_found() -> None:
    assert choose_bands(0.8, 128) == Bands(21, 6)
    assert choose_bands(0.7, 128) == Bands(26, 5)
    assert Bands(21, 6).curve().startswith("21 bands × 6 rows: compares 28.2 % at 0.5, ")
    for threshold, num_perm in ((0, 128), (1.01, 128), (math.nan, 128), (0.8, 0)):
        with pytest.raises(PilekitError):
            choose_bands(threshold, num_perm)
    with pytest.raises(PilekitError, match="permutations cannot find"):
        choose_bands(0.1, 16)
    for threshold in (percent / 100 for percent in range(20, 100)):
        bands = choose_bands(threshold, 128)
        assert (
            bands.probability(threshold)
            >= 0.99
            > Bands(-(-128 // (bands.rows + 1)), bands.rows + 1).probability(threshold)
        )
        # No permutations are left over for another band, and none exceed the last band.
        assert 128 - bands.rows < bands.num_perm < 128 + bands.rows
