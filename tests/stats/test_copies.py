"""Copies are the texts that occurred before, in whatever parts their hashes arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.stats import copies
from pilekit.stats.copies import CopyCounter

few_hashes = st.sampled_from([0, 1, 2**56 - 1, 2**56, 2**63, 2**64 - 2, 2**64 - 1])
blocks = st.lists(st.lists(st.tuples(few_hashes | st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=20))


@given(st.sampled_from([1, 10, 10**6]), blocks)
def test_as_a_set_counts(part: int, given_blocks: list[list[tuple[int, int]]]) -> None:
    seen: set[int] = set()
    expected = [0, 0, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_PART", part)
        counter = CopyCounter()
        for block in given_blocks:
            hashes = np.array([number for number, _ in block], dtype=np.uint64)
            counter.add(hashes, np.array([group for _, group in block], dtype=np.int16))
            for number, group in block:
                expected[group] += number in seen
                seen.add(number)
        assert counter.copies(4).tolist() == expected
