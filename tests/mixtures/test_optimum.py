"""The best mixture against a search at random, and mixtures under caps against a search for their scale."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.mixtures.optimum import best_mixture, capped
from pilekit.mixtures.regression import LossLaw
from pilekit.mixtures.run_table import Float64


def plainly_capped(weights: Float64, caps: Float64) -> Float64:
    """The scale by halving an interval."""
    low, high = 0.0, 1e15
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(caps, middle * weights).sum() < 1 else (low, middle)
    return np.minimum(caps, high * weights)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(0.05, 1)), min_size=2, max_size=8))
def test_caps_are_kept_and_the_rest_is_in_proportion(rows: list[tuple[float, float]]) -> None:
    weights, caps = np.array(rows).T
    caps = caps / min(1.0, caps.sum())
    found = capped(weights, caps)
    np.testing.assert_allclose(found, plainly_capped(weights, caps), atol=1e-9)
    assert abs(found.sum() - 1) < 1e-9
    assert (found <= caps).all()
    np.testing.assert_array_equal(capped(np.stack([weights, weights[::-1]]), caps)[0], found)


@settings(deadline=None, max_examples=10)
@given(st.integers(2, 5), st.integers(0, 99), st.floats(0.3, 1))
def test_no_mixture_of_a_search_at_random_is_better(subsets: int, seed: int, cap: float) -> None:
    draw = np.random.default_rng(seed)
    coefficients = np.vstack([draw.normal(0, 0.3, (subsets, 3)), draw.normal(-0.05, 0.05, (subsets, 3))])
    law, goal = LossLaw(draw.normal(0, 0.2, 3), coefficients), np.array([0.5, 0.3, 0.2])
    caps = np.full(subsets, max(cap, 1.2 / subsets))
    starts = draw.dirichlet(np.ones(subsets), 4)
    best = best_mixture(law, goal, caps, starts)
    assert abs(best.sum() - 1) < 1e-9
    assert (best <= caps + 1e-12).all()
    searched = np.vstack([draw.dirichlet(np.full(subsets, alpha), 20_000) for alpha in (0.1, 0.5, 1)])
    near = best * np.exp(draw.normal(0, 0.1, (20_000, subsets)))
    searched = capped(np.vstack([searched, near]), caps)
    assert law.losses(best[None])[0] @ goal <= (law.losses(searched) @ goal).min() * (1 + 1e-5)


def test_many_laws_at_once_have_the_optima_of_each_alone() -> None:
    draw = np.random.default_rng(3)
    laws = [
        LossLaw(draw.normal(0, 0.2, 2), np.vstack([draw.normal(0, 0.3, (3, 2)), np.full((3, 2), -0.05)]))
        for _ in range(4)
    ]
    both = LossLaw(np.stack([law.intercepts for law in laws]), np.stack([law.coefficients for law in laws]))
    goal, caps, starts = np.array([0.4, 0.6]), np.ones(3), np.full((1, 3), 1 / 3)
    found = best_mixture(both, goal, caps, starts)
    alone = np.stack([best_mixture(law, goal, caps, starts) for law in laws])
    np.testing.assert_allclose(found, alone, atol=1e-9)
