"""Split sums against single coins, intervals and p-values against the sign-flip test, and how often they are wrong."""

from __future__ import annotations

import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.evaluate.results.intervals import (
    SEED,
    SPLITS,
    UNITS,
    Float64,
    Resampled,
    holm,
    interval,
    p_value,
    resamples,
    split_sums,
)
from tests.benchmarks.bpb.interval_coverage import LAWS, SIZES, p_values, sample


def coins(documents: int, name: str, split: int) -> list[int]:
    """1 for each document in the first part: bit i of a byte is document i of eight, and each split has a byte."""
    raw = np.random.PCG64([SEED, zlib.crc32(name.encode())]).random_raw(-(-documents // 8) * SPLITS // 8)
    found = []
    for document in range(documents):
        place = document // 8 * SPLITS + split
        byte = int(raw[place // 8]) >> 8 * (place % 8) & 255
        found.append(byte >> document % 8 & 1)
    return found


@settings(deadline=None, max_examples=5)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.sampled_from([0.0, 1.0, 1e12])), max_size=20), st.text(max_size=3))
def test_sums_are_those_of_the_coins(rows: list[tuple[float, float]], name: str) -> None:
    columns = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    found = split_sums(columns, name)
    assert found.shape == (2, SPLITS)
    for split in (0, 1, 9, 4_567, SPLITS - 1):
        exact = [
            sum(coin * Fraction(v) for coin, v in zip(coins(len(rows), name, split), of, strict=True))
            for of in columns.tolist()
        ]
        np.testing.assert_allclose(found[:, split], [float(one) for one in exact], rtol=1e-12, atol=1e-9)


def sign_flip(numerators: list[int], sizes: list[int], figure: Fraction) -> Fraction:
    """The p-value of `figure`: the share of splits in which flipped residuals sum up to no less."""
    residuals = [(number - figure * size) for number, size in zip(numerators, sizes, strict=True)]
    scale = np.lcm.reduce([one.denominator for one in residuals])
    exact = np.array([int(one * int(scale)) for one in residuals], dtype=object)
    signs = 2 * split_sums(np.eye(len(sizes))).T.astype(np.int64).astype(object) - 1
    return Fraction(1 + int(np.count_nonzero(abs(signs @ exact) >= abs(exact.sum()))), SPLITS + 1)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(-50, 50), st.sampled_from([1, 3, 1000])), min_size=10, max_size=14))
def test_the_interval_holds_what_the_sign_flip_test_does_not_reject(rows: list[tuple[int, int]]) -> None:
    numerators, sizes = map(list, zip(*rows, strict=True))
    sums, whole = split_sums(np.array([numerators, sizes], dtype=np.float64)), [sum(numerators), sum(sizes)]
    assert p_value(sums, whole) == pytest.approx(float(sign_flip(numerators, sizes, Fraction(0))))
    found = interval(sums, whole)
    low, high = map(Fraction, found)
    assert low <= Fraction(*whole) + Fraction(1, 10**9)
    little = Fraction(1, 10**9)
    for end, outside in ((low, -little), (high, little)):
        assert sign_flip(numerators, sizes, end + outside) <= Fraction(5, 100)
        assert sign_flip(numerators, sizes, end - outside) > Fraction(5, 100) or high - low <= 2 * little
    assert p_value(sums, whole) <= 0.05 or low - little <= 0 <= high + little


def test_one_document_of_almost_all_bytes_has_no_interval() -> None:
    sizes = np.array([1e12] + [1.0] * 20)
    sums = split_sums(np.array([sizes * 0.5, sizes]))
    assert interval(sums, [0.5 * sizes.sum(), sizes.sum()]) is None
    assert p_value(sums, [0.5 * sizes.sum(), sizes.sum()]) == 1


def draws(units: int, resample: int) -> list[int]:
    """The units of a resample: each half of a number of the stream, low half first, as a fraction of 2^32."""
    raw = np.random.PCG64([SEED, units]).random_raw(units * SPLITS // 2)
    found = []
    for draw in range(units):
        place = draw * SPLITS + resample
        found.append((int(raw[place // 2]) >> 32 * (place % 2) & 0xFFFFFFFF) * units >> 32)
    return found


@pytest.mark.parametrize("units", [1, 2, 10, UNITS])
def test_resamples_are_draws_with_replacement(units: int) -> None:
    found = resamples(units)
    assert found.shape == (units, SPLITS)
    for resample in (0, 1, 4_567, SPLITS - 1):
        drawn = draws(units, resample)
        assert found[:, resample].tolist() == [drawn.count(unit) for unit in range(units)]
    assert set(found.sum(axis=0, dtype=int).tolist()) == {units}
    assert abs(found.mean(axis=1) - 1).max() < 0.06


def quotient(rows: list[tuple[float, float]], figure: float) -> float:
    """The error of the figure of these units, divided by its standard error, one unit after the other."""
    numerator, denominator = (math.fsum(column) for column in zip(*rows, strict=True))
    own = numerator / denominator
    rest = [(top - own * size) ** 2 for top, size in rows]
    if math.fsum(rest) <= 1e-18 * math.fsum(top * top for top, _ in rows):
        return 0.0 if abs(own - figure) <= 1e-9 else math.copysign(math.inf, own - figure)
    return (own - figure) * denominator / math.sqrt(math.fsum(rest) * len(rows) / (len(rows) - 1))


@settings(deadline=None, max_examples=10)
@given(
    st.lists(st.tuples(st.floats(-50, 50), st.sampled_from([1.0, 30.0, 1000.0])), min_size=10, max_size=30),
    st.sampled_from([1, 40]),
)
def test_the_resampled_interval_is_that_of_a_plain_loop(documents: list[tuple[float, float]], times: int) -> None:
    """`times` makes more documents than units: unit 1 has the documents 1, 251, 501 ..."""
    rng = np.random.default_rng(1)
    documents = [(top + float(rng.normal(0, 0.1)), size) for _ in range(times) for top, size in documents]
    units = [documents[unit::UNITS] for unit in range(min(UNITS, len(documents)))]
    rows = [(math.fsum(top for top, _ in unit), math.fsum(size for _, size in unit)) for unit in units]
    figure = math.fsum(top for top, _ in rows) / math.fsum(size for _, size in rows)
    counts = resamples(len(rows))
    found = Resampled.of(*np.array(documents).T)
    sampled = range(0, SPLITS, 1 if times == 1 else 97)
    expected = sorted(
        quotient([row for row, count in zip(rows, counts[:, one], strict=True) for _ in range(count)], figure)
        for one in sampled
    )
    assert found.figure == pytest.approx(figure)
    if len(expected) < SPLITS:  # some of the quotients are among all of them
        nearest = found.quotients[np.searchsorted(found.quotients, np.array(expected) + 1e-9) - 1]
        np.testing.assert_allclose(nearest, expected, rtol=1e-6, atol=2e-9)
        return
    np.testing.assert_allclose(found.quotients, expected, rtol=1e-6, atol=1e-9)
    error = figure / quotient(rows, 0.0) if figure else 0.0
    assert found.error == pytest.approx(error) or not figure
    both = sorted(map(abs, expected))[-500]  # 5 % of 10,000 are as far out, and 2.5 % on a side
    low, high = figure - max(expected[-250], both) * error, figure - min(expected[249], -both) * error
    assert found.interval() == pytest.approx((low, high), rel=1e-5, abs=1e-9) or not np.isfinite([low, high]).all()
    at = figure / error
    far = [2 * (1 + sum(one >= at for one in expected)), 2 * (1 + sum(one <= at for one in expected))]
    p = max(min(far), 1 + sum(abs(one) >= abs(at) for one in expected)) / (SPLITS + 1)
    assert found.p_value() == pytest.approx(min(1.0, p), abs=3 / SPLITS)
    assert (found.p_value() <= 0.05) == (low > 0 or high < 0) or abs(p - 0.05) < 3 / SPLITS


def test_the_resampled_interval_has_no_end_if_few_documents_differ_and_no_width_if_none_does() -> None:
    sizes = np.full(100, 8.0)
    assert Resampled.of(np.where(np.arange(100) < 3, 5.0, 0.0), sizes).interval() is None
    alike = Resampled.of(2.5 * sizes, sizes)
    assert (alike.interval(), alike.p_value()) == ((2.5, 2.5), 1 / (SPLITS + 1))
    nothing = Resampled.of(0 * sizes, sizes)
    assert (nothing.interval(), nothing.p_value()) == ((0.0, 0.0), 1.0)


def test_the_resampled_interval_turns_with_the_sign() -> None:
    rng = np.random.default_rng(2)
    top, sizes = rng.lognormal(0, 1.5, 60) - 3, rng.uniform(200, 4000, 60)
    one, other = Resampled.of(top, sizes), Resampled.of(-top, sizes)
    low, high = one.interval() or (math.nan, math.nan)
    assert other.interval() == pytest.approx((-high, -low))
    assert other.p_value() == one.p_value()
    assert high - one.figure > 1.2 * (one.figure - low)  # what the sample may lack lies on the side of its tail


def test_holm() -> None:
    """By hand: 4 x 0.01, 3 x 0.02, 2 x 0.025 but no less than the one before, then 1."""
    assert holm([0.025, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def rates(documents: int, simulations: int) -> Float64:
    """The p-values of two equal models on documents of all laws of length."""
    draw = np.random.default_rng(documents)
    return np.concatenate([p_values(*sample(draw, law, (simulations, documents))) for law in LAWS])


@pytest.mark.parametrize("sizes", [(10, 30), pytest.param(SIZES, marks=pytest.mark.slow)])
def test_equal_models_are_told_apart_in_at_most_six_of_a_hundred_comparisons(sizes: tuple[int, ...]) -> None:
    """And intervals are not too wide either. With 3 documents there is no verdict at all (test_compare.py)."""
    for documents in sizes:
        simulations = 1000 if documents < 1000 else 200
        assert 0.04 <= np.mean(rates(documents, simulations) <= 0.05) <= 0.06, documents


def test_of_22_subsets_of_equal_models_rarely_any_is_told_apart() -> None:
    found = np.array(
        [
            p_values(*sample(np.random.default_rng(place), LAWS[place % 4], (200, 30)), f"subset {place}")
            for place in range(22)
        ]
    )
    assert np.mean(found.min(axis=0) <= 0.05) > 0.5  # without Holm's method
    assert np.mean([min(holm(one)) <= 0.05 for one in found.T.tolist()]) <= 0.06
