"""A proof that two sets differ is never wrong, and is found for sets that differ much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.compare.difference import LARGEST, bitmap_words, bitmaps, least_difference
from pilekit.dedup.compare.jaccard_kernels import needed

some_values = st.sets(st.integers(0, 300) | st.integers(0, 2**64 - 1), min_size=1, max_size=300)


def told(*sets: set[int]) -> int:
    sizes = np.array([len(some) for some in sets])
    values = np.concatenate([np.array(sorted(some), dtype=np.uint64) for some in sets])
    words = bitmap_words(sizes).tolist()
    found = {
        int(least_difference(bitmaps(values, sizes), 0, words[0], words[0], words[1])),
        int(least_difference(bitmaps(values, sizes), words[0], words[1], 0, words[0])),
    }
    assert len(found) == 1
    return found.pop()


@given(some_values, some_values)
def test_no_more_than_what_only_one_of_them_has(one: set[int], other: set[int]) -> None:
    assert told(one, other) <= len(one ^ other)
    assert told(one, one) == 0
    assert told(one, one | other) <= len(other - one)


@pytest.mark.parametrize("size", [100, 1000, 2000, 32_000])
@pytest.mark.parametrize("similarity", [0, 0.3, 0.5, 0.6])
@pytest.mark.parametrize("ratio", [1, 0.9])
def test_of_sets_with_a_similarity_up_to_six_tenths_it_is_proven_that_they_do_not_reach_eight(
    size: int, similarity: float, ratio: float
) -> None:
    values = np.random.default_rng(0).integers(0, 2**64, size=2 * size, dtype=np.uint64).tolist()
    other_size = int(ratio * size)
    shared = int(similarity * (size + other_size) / (1 + similarity))
    one, other = set(values[:size]), set(values[size - shared :][:other_size])
    assert len(one) + len(other) - told(one, other) < 2 * needed(len(one), len(other), 0.8)


def test_large_sets_have_no_bitmap_and_are_not_told_apart() -> None:
    assert bitmap_words(np.array([1, 32, 33, 64, 65, LARGEST, LARGEST + 1])).tolist() == [1, 1, 2, 2, 4, 1024, 0]
    assert told({1, 2, 3}, set(range(LARGEST + 1))) == 0
