from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.stats import copies
from pilekit.stats.copies import CopyCounter

few_hashes = st.sampled_from([0, 1, 2**56 - 1, 2**56, 2**63, 2**64 - 2, 2**64 - 1])
blocks = st.lists(st.lists(st.tuples(few_hashes | st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=20))


def slow_count(given_blocks: list[list[tuple[int, int]]]) -> list[int]:
    seen: set[int] = set()
    counts = [0, 0, 0, 0]
    for number, group in (one for block in given_blocks for one in block):
        counts[group] += number in seen
        seen.add(number)
    return counts


@pytest.mark.parametrize("worth_a_pass", [1, 10, 10**6])
@given(given_blocks=blocks)
def test_as_a_set_counts(worth_a_pass: int, given_blocks: list[list[tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_WORTH_A_PASS", worth_a_pass)
        counter = CopyCounter()
        for block in given_blocks:
            hashes = np.array([number for number, _ in block], dtype=np.uint64)
            counter.add(hashes, np.array([group for _, group in block], dtype=np.int32))
        assert counter.copies(4).tolist() == slow_count(given_blocks)


def test_counting_may_go_on_after_asking() -> None:
    counter = CopyCounter()
    group = np.zeros(2, dtype=np.int32)
    counter.add(np.array([5, 5], dtype=np.uint64), group)
    assert counter.copies(1).tolist() == [1]
    counter.add(np.array([5, 6], dtype=np.uint64), group + 1)
    assert counter.copies(2).tolist() == [1, 1]


def test_nothing_given() -> None:
    assert CopyCounter().copies(2).tolist() == [0, 0]


def test_what_is_kept_is_eight_bytes_a_distinct_hash() -> None:
    counter = CopyCounter()
    generator = np.random.default_rng(0)
    for _ in range(20):
        counter.add(generator.integers(0, 2**64, 10_000, dtype=np.uint64), np.zeros(10_000, dtype=np.int32))
    counter.copies(1)
    assert sum(seen.nbytes for seen in counter._seen) == 8 * 200_000
    assert not counter._waiting
