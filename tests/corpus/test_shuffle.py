"""`mix` against splitmix64 in plain integers, and permutations against their definition."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus.shuffle import mix, permutation

MASK = (1 << 64) - 1


def plain_mix(*parts: int) -> int:
    state = 0
    for part in parts:
        state = ((state ^ (part & MASK)) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(0, 2**64 - 1))
def test_mix_is_splitmix64_of_each_element(numbers: list[int], seed: int) -> None:
    assert int(mix(0)) == 0xE220A8397B1DCDAF, "the published first number of splitmix64"
    assert [int(mix(seed, number)) for number in numbers] == [plain_mix(seed, number) for number in numbers]
    found = mix(seed, np.array(numbers, np.int64), 7)
    assert found.dtype == np.uint64
    assert found.tolist() == [plain_mix(seed, number, 7) for number in numbers]


def test_a_permutation_is_the_order_of_philox_words() -> None:
    """It must never change: numpy guarantees the words, and this test fixes the key."""
    key = int.from_bytes(hashlib.sha256(b"(7, (1, 3))").digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(50).tolist()
    assert permutation(50, 7, 1, 3).tolist() == sorted(range(50), key=lambda index: words[index])
    assert permutation(6, 0, 1, 0).tolist() == [0, 4, 2, 5, 1, 3]
    assert [permutation(n, 5, 1).tolist() for n in (0, 1)] == [[], [0]]
