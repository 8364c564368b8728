"""Bins and quantiles stay within the promised error; copies are the texts that occurred before, however they arrive."""

from __future__ import annotations

import math
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pilekit.stats.counting import CopyCounter, Counts
from pilekit.stats.histogram import BINS, LARGEST, RELATIVE_ERROR, bin_of, middle_of, quantile

sizes = st.one_of(
    st.integers(0, 300),
    st.integers(0, LARGEST),
    st.integers(0, 35).flatmap(lambda power: st.sampled_from([2**power - 1, 2**power, 2**power + 1])),
)


def test_every_size_lies_within_the_error_of_its_bins_middle() -> None:
    assert RELATIVE_ERROR < 0.01
    values = np.concatenate([np.arange(1_000_000), 2 ** np.arange(20, 36), 2 ** np.arange(20, 36) - 1])
    bins = bin_of(values)
    assert np.all(np.isin(np.diff(bins[:1_000_000]), [0, 1]))
    assert np.all(np.abs(middle_of(bins) - values) <= RELATIVE_ERROR * values)
    assert bin_of(np.array([2**36, 2**50])).tolist() == [BINS - 1, BINS - 1]
    assert math.isnan(quantile(np.zeros(BINS, dtype=np.int64), 0.5))


@given(st.lists(sizes, min_size=1, max_size=200), st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_quantiles_are_those_of_numpy_within_the_error(values: list[int], fraction: float) -> None:
    def counted(some: list[int]) -> np.ndarray:
        return np.bincount(bin_of(np.array(some, dtype=np.int64)), minlength=BINS)

    exact = np.quantile(np.array(values, dtype=np.float64), fraction)
    rounding = 1e-9 * max(values)
    assert abs(quantile(counted(values), fraction) - exact) <= RELATIVE_ERROR * exact + rounding
    small = [value % 128 for value in values]
    assert quantile(counted(small), 0.5) == np.median(small)


def test_counts_of_many_labels_are_small_when_a_process_sends_them() -> None:
    rng, counts = np.random.default_rng(0), Counts()
    counts.skipped.count = 3
    rows = counts.rows([f"label {number}" for number in range(1000)])
    counts.add(rng.choice(rows, 10_000), rng.integers(0, 10**6, 10_000))
    counts.add(np.repeat(rows[:22], BINS), np.tile(middle_of(np.arange(BINS)).astype(np.int64), 22))
    counts.tokens[rows] = rows
    stored = pickle.dumps(counts)
    assert len(stored) < 1 << 20 < counts.lengths.nbytes
    copy = pickle.loads(stored)
    assert (copy.groups, copy.skipped) == (counts.groups, counts.skipped)
    for name in ("bytes", "lengths", "tokens"):
        assert np.array_equal(getattr(copy, name), getattr(counts, name))
    assert copy.rows(["label 5", "another"]).tolist() == [5, 1000]


few_hashes = st.sampled_from([0, 1, 2**56 - 1, 2**56, 2**63, 2**64 - 2, 2**64 - 1])
blocks = st.lists(st.lists(st.tuples(few_hashes | st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=20))


@given(st.sampled_from([1, 10, 10**6]), blocks)
def test_copies_are_those_that_a_set_counts(part: int, given_blocks: list[list[tuple[int, int]]]) -> None:
    seen: set[int] = set()
    expected = [0, 0, 0, 0]
    counter = CopyCounter(part)
    for block in given_blocks:
        hashes = np.array([number for number, _ in block], dtype=np.uint64)
        counter.add(hashes, np.array([group for _, group in block], dtype=np.int16))
        for number, group in block:
            expected[group] += number in seen
            seen.add(number)
    assert counter.copies(4).tolist() == expected
