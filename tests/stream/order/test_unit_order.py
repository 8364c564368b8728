"""The order of a unit's documents, whose words a compiled loop makes, against numpy's Philox."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pilekit.corpus.shuffle import permutation
from pilekit.stream.order.philox_kernel import philox_words
from pilekit.stream.order.unit_sequence import Sequence

WORD = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])


@given(WORD, WORD, st.integers(0, 300))
def test_words_are_those_of_numpy(low: int, high: int, count: int) -> None:
    words = np.empty(count, np.uint64)
    philox_words(low, high, words)
    assert words.tolist() == np.random.Philox(key=high << 64 | low).random_raw(count).tolist()


@given(st.integers(1, 700), st.integers(1, 256), st.integers(0, 2**64 - 1), st.integers(0, 10_000))
def test_a_unit_has_the_order_of_its_permutation(documents: int, unit: int, seed: int, position: int) -> None:
    sequence = Sequence(documents, unit, 2, seed, 1)
    place = sequence.at(position)
    order = permutation(place.end - place.begin, seed, 2, place.epoch, place.unit, place.copy)
    assert sequence.order(place).tolist() == order.tolist()
    assert sequence.order(place).dtype == np.int64
