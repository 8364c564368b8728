from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.stats.histogram import BINS, LARGEST, RELATIVE_ERROR, bin_of, middle_of, quantile

sizes = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**20),
    st.integers(0, LARGEST),
    st.integers(0, 35).flatmap(lambda power: st.sampled_from([2**power - 1, 2**power, 2**power + 1])),
)


def counted(values: list[int]) -> np.ndarray:
    return np.bincount(bin_of(np.array(values, dtype=np.int64)), minlength=BINS)


def test_the_promised_error_is_below_one_percent() -> None:
    assert RELATIVE_ERROR < 0.01


def test_every_size_up_to_a_million_lies_within_the_error_of_its_bins_middle() -> None:
    values = np.arange(1_000_000)
    bins = bin_of(values)
    assert np.all(np.diff(bins) >= 0)
    assert np.all(np.diff(bins) <= 1)
    assert np.all(np.abs(middle_of(bins) - values) <= RELATIVE_ERROR * values)


@given(st.lists(sizes, min_size=1))
def test_sizes_of_any_magnitude_lie_within_the_error_of_their_bins_middle(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    bins = bin_of(array)
    assert np.all(np.abs(middle_of(bins) - array) <= RELATIVE_ERROR * array)
    assert 0 <= bins.min() <= bins.max() < BINS


def test_sizes_beyond_the_last_bin_are_counted_in_it() -> None:
    assert bin_of(np.array([2**36, 2**50])).tolist() == [BINS - 1, BINS - 1]


@given(st.lists(sizes, min_size=1, max_size=200), st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_quantiles_are_those_of_numpy_within_the_error(values: list[int], fraction: float) -> None:
    exact = np.quantile(np.array(values, dtype=np.float64), fraction)
    rounding = 1e-9 * max(values)
    assert abs(quantile(counted(values), fraction) - exact) <= RELATIVE_ERROR * exact + rounding


@given(st.lists(st.integers(0, 127), min_size=1, max_size=50))
def test_quantiles_of_small_sizes_are_exact(values: list[int]) -> None:
    assert quantile(counted(values), 0.5) == np.median(values)


@given(st.lists(sizes), st.lists(sizes))
def test_histograms_of_parts_add_up_to_that_of_the_whole(one: list[int], other: list[int]) -> None:
    assert (counted(one) + counted(other)).tolist() == counted(one + other).tolist()


def test_nothing_counted_has_no_quantile() -> None:
    assert math.isnan(quantile(np.zeros(BINS, dtype=np.int64), 0.5))


@pytest.mark.parametrize("fraction", [0.5, 0.99])
def test_a_million_log_normal_sizes(fraction: float) -> None:
    values = np.random.default_rng(0).lognormal(8, 1.5, 1_000_000).astype(np.int64)
    exact = np.quantile(values, fraction)
    assert abs(quantile(np.bincount(bin_of(values), minlength=BINS), fraction) - exact) <= RELATIVE_ERROR * exact
