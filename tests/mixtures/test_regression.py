"""The ridge regression against plain ones: all mixtures left out one by one, repeated rows, ranks by comparison."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.mixtures.regression import (
    FLOOR,
    STRENGTHS,
    LossLaw,
    cross_validate,
    features,
    fit_law,
    rank_correlation,
)
from pilekit.mixtures.run_table import Float64


def drawn(runs: int, subsets: int, losses: int, seed: int) -> tuple[Float64, Float64]:
    draw = np.random.default_rng(seed)
    mixtures = draw.dirichlet(np.full(subsets, 0.5), runs)
    mixtures[0, 0], mixtures[0, 1] = 0.0, mixtures[0, 0] + mixtures[0, 1]
    return mixtures, np.exp(draw.normal(1, 0.2, (runs, losses)))


def plain_ridge(mixtures: Float64, losses: Float64, strength: float) -> tuple[Float64, Float64]:
    """(intercepts, coefficients) by least squares on rows that hold the penalty."""
    known, logs, runs = np.hstack([mixtures, np.log(mixtures + FLOOR)]), np.log(losses), len(losses)
    rows = np.hstack([known, np.ones((runs, 1))])
    penalty = np.hstack([np.sqrt(strength * runs) * np.eye(known.shape[1]), np.zeros((known.shape[1], 1))])
    right = np.vstack([logs, np.zeros((known.shape[1], logs.shape[1]))])
    solution = np.linalg.lstsq(np.vstack([rows, penalty]), right, rcond=None)[0]
    return solution[-1], solution[:-1]


@settings(deadline=None)
@given(st.integers(3, 30), st.integers(2, 6), st.integers(1, 3), st.integers(0, 99), st.floats(-4, 1))
def test_a_law_is_a_plain_ridge_regression(runs: int, subsets: int, losses: int, seed: int, power: float) -> None:
    mixtures, measured = drawn(runs, subsets, losses, seed)
    law = fit_law(mixtures, measured, np.full(losses, 10.0**power))
    intercepts, coefficients = plain_ridge(mixtures, measured, 10.0**power)
    np.testing.assert_allclose(law.coefficients, coefficients, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(law.intercepts, intercepts, rtol=1e-5, atol=1e-6)
    predicted = np.exp(intercepts + features(mixtures) @ coefficients)
    np.testing.assert_allclose(law.losses(mixtures), predicted, rtol=1e-5)


@settings(deadline=None, max_examples=10)
@given(st.integers(4, 16), st.integers(2, 4), st.integers(0, 99), st.integers(1, 8))
def test_left_out_mixtures_are_predicted_as_if_each_was_never_there(
    runs: int, subsets: int, seed: int, replicates: int
) -> None:
    """The penalty of a fit without a mixture is that of all: strength x the number of all runs."""
    mixtures, measured = drawn(runs, subsets, 2, seed)
    counts = np.ones(runs, np.int64)
    counts[1] = replicates
    strengths, held_out = cross_validate(mixtures, measured, counts.astype(np.float64))
    errors = np.empty((len(STRENGTHS), 2))
    predictions = np.empty((len(STRENGTHS), runs, 2))
    for place, strength in enumerate(STRENGTHS):
        for left_out in range(runs):
            rest = np.repeat(np.arange(runs), np.where(np.arange(runs) == left_out, 0, counts))
            penalty = strength * counts.sum() / len(rest)
            intercepts, coefficients = plain_ridge(mixtures[rest], measured[rest], penalty)
            predictions[place, left_out] = intercepts + features(mixtures[left_out]) @ coefficients
        errors[place] = ((predictions[place] - np.log(measured)) ** 2).mean(axis=0)
    for loss in range(2):
        chosen = int(np.flatnonzero(strengths[loss] == STRENGTHS)[0])
        assert errors[chosen, loss] <= errors[:, loss].min() * (1 + 1e-4)
        np.testing.assert_allclose(np.log(held_out[:, loss]), predictions[chosen, :, loss], rtol=1e-3, atol=1e-4)


def test_a_mixture_that_counts_twice_is_two_rows() -> None:
    mixtures, measured = drawn(9, 3, 2, 4)
    counts = np.array([2, 1, 0, 1, 3, 1, 1, 0, 1])
    rows = np.repeat(np.arange(9), counts)
    strengths = np.array([1e-3, 1e-2])
    counted = fit_law(mixtures, measured, strengths, counts.astype(np.float64))
    repeated = fit_law(mixtures[rows], measured[rows], strengths)
    np.testing.assert_allclose(counted.losses(mixtures), repeated.losses(mixtures), rtol=1e-9)


def test_several_laws_at_once_are_each_alone() -> None:
    mixtures, measured = drawn(9, 3, 2, 5)
    laws = [fit_law(mixtures, measured, np.full(2, strength)) for strength in (1e-4, 1e-1)]
    both = LossLaw(np.stack([law.intercepts for law in laws]), np.stack([law.coefficients for law in laws]))
    for place, law in enumerate(laws):
        np.testing.assert_allclose(both.losses(mixtures)[place], law.losses(mixtures))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_the_rank_correlation_is_that_of_ranks_by_comparison(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, dtype=np.float64).T

    def ranks(values: Float64) -> Float64:
        return np.array([(values < one).sum() + ((values == one).sum() - 1) / 2 for one in values])

    found = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(np.corrcoef(ranks(first), ranks(second))[0, 1])
