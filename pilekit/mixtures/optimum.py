"""The mixture with the least predicted loss, under caps, for many laws at once.

The target is the weighted mean of the losses that a law predicts. It is minimised by multiplicative steps down its
gradient (mirror descent): each weight is multiplied by exp(-rate x its slope), and the result is scaled to the sum 1,
with weights above their cap held there. A step that does not lower the target is taken back, and the rate is halved.
Multiplication suits logarithms: weights stay above 0, and small ones move by the same factor as large ones.

On RegMix's runs all 512 of its mixtures lead to one optimum (tests/mixtures/test_optimum.py compares with a search at
random).
"""

from __future__ import annotations

import numpy as np

from pilekit.mixtures.regression import FLOOR, LossLaw
from pilekit.mixtures.run_table import Float64

STEPS = 300
SMALLEST = 0.0005
"""A smaller weight is left out of a mixture: a stream would read hardly a document of that subset."""

_FIRST_RATE, _FASTER, _SLOWER, _LONGEST = 0.1, 1.5, 0.5, 3.0


def best_mixture(law: LossLaw, goal: Float64, caps: Float64, starts: Float64) -> Float64:
    """The best mixture that is found from any start, for each of several laws.

    law      with any leading dimensions
    goal     float64 [losses]: the weight of each loss in the target
    caps     float64 [subsets], with a sum of at least 1
    starts   float64 [starts, subsets]

    Returns float64 [..., subsets], each with the sum 1.
    """
    linear, logarithmic = np.split(law.coefficients.swapaxes(-1, -2), 2, axis=-1)
    weights = np.broadcast_to(capped(starts, caps), (*law.intercepts.shape[:-1], *starts.shape))
    losses = law.losses(weights) * goal
    rates = np.full((*weights.shape[:-1], 1), _FIRST_RATE)
    for _ in range(STEPS):
        slopes = losses @ linear + (losses @ logarithmic) / (weights + FLOOR)
        slopes -= (weights * slopes).sum(axis=-1, keepdims=True)
        tried = capped(weights * np.exp((-rates * slopes).clip(-_LONGEST, _LONGEST)), caps)
        new = law.losses(tried) * goal
        better = new.sum(axis=-1, keepdims=True) < losses.sum(axis=-1, keepdims=True)
        weights, losses = np.where(better, tried, weights), np.where(better, new, losses)
        rates *= np.where(better, _FASTER, _SLOWER)
    first = losses.sum(axis=-1).argmin(axis=-1)
    best: Float64 = np.take_along_axis(weights, first[..., None, None], axis=-2)[..., 0, :]
    return best


def capped(weights: Float64, caps: Float64) -> Float64:
    """Mixtures scaled to the sum 1 with a cap on each weight: min(cap, scale x weight), each mixture with its scale.

    weights   float64 [..., subsets], not negative
    caps      float64 [subsets], with a sum of at least 1
    """
    positive = weights.clip(1e-12)
    limits = caps / positive  # the scale at which a weight reaches its cap
    order = limits.argsort(axis=-1)
    ordered_caps, ordered = caps[order], np.take_along_axis(positive, order, axis=-1)
    at_cap = ordered_caps.cumsum(axis=-1) - ordered_caps
    scales = (1 - at_cap) / ordered[..., ::-1].cumsum(axis=-1)[..., ::-1]
    fits = scales <= np.take_along_axis(limits, order, axis=-1)
    fits[..., -1] = True  # caps that sum to 1 leave no other mixture, and rounding may say otherwise
    scale = np.take_along_axis(scales, fits.argmax(axis=-1)[..., None], axis=-1)
    result: Float64 = np.minimum(caps, scale * positive)
    return result


def rounded(mixture: Float64, caps: Float64) -> Float64:
    """A mixture in four decimals, without the smallest weights; the rest goes where the cap leaves most room."""
    kept: Float64 = np.where(mixture < SMALLEST, 0, np.floor(mixture * 1e4) / 1e4)
    kept[np.where(kept > 0, caps - kept, -1).argmax()] += 1 - kept.sum()
    return kept.round(4)
