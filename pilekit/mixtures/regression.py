"""The law that is fitted to runs: the loss on a subset as a function of the weights of all subsets.

    log loss = a + Σ (b_i w_i + c_i log(w_i + FLOOR))

a, b and c are fitted by ridge regression of the logarithms of losses: the mean squared error plus `strength` times the
sum of all b² and c² is least. The strength of each subset is that with the least squared error on mixtures that were
left out, one at a time. For ridge regression this error needs no second fit: it is the error of the fit, divided by
1 - h, where h is the share of a mixture's own loss in its prediction.

A weight of 0 has no logarithm. FLOOR is added to every weight, and stands for the part of a subset's text that others
teach too. On RegMix's published runs 0.001 ranks unseen mixtures best; half and twice as much lose under 0.001 of rank
correlation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pilekit.mixtures.run_table import Float64

FLOOR = 0.001
STRENGTHS = 10.0 ** np.arange(-7, 1.01, 1 / 3)


@dataclass(frozen=True, slots=True, eq=False)
class LossLaw:
    """A fitted law: `intercepts` float64 [..., losses], `coefficients` float64 [..., 2 x subsets, losses].

    Several laws of the same columns are one law with leading dimensions.
    """

    intercepts: Float64
    coefficients: Float64

    def losses(self, weights: Float64) -> Float64:
        """The predicted losses, float64 [..., mixtures, losses], of mixtures, float64 [..., mixtures, subsets]."""
        predicted: Float64 = np.exp(self.intercepts[..., None, :] + features(weights) @ self.coefficients)
        return predicted


def features(weights: Float64) -> Float64:
    """The numbers that a law multiplies: float64 [..., 2 x subsets] of weights, float64 [..., subsets]."""
    return np.concatenate([weights, np.log(weights + FLOOR)], axis=-1)


def fit_law(weights: Float64, losses: Float64, strengths: Float64, counts: Float64 | None = None) -> LossLaw:
    """The law of runs.

    weights     float64 [runs, subsets]
    losses      float64 [runs, losses]
    strengths   float64 [losses]
    counts      float64 [runs]: how often each run counts; None: once
    """
    counts = np.ones(len(weights)) if counts is None else counts
    known, logs = features(weights), np.log(losses)
    share = counts / counts.sum()
    means, mean_logs = share @ known, share @ logs
    centred = known - means
    values, vectors = np.linalg.eigh((centred * share[:, None]).T @ centred)
    rotated = vectors.T @ ((centred * share[:, None]).T @ (logs - mean_logs))
    coefficients = vectors @ (rotated / (values.clip(0)[:, None] + strengths))
    return LossLaw(mean_logs - means @ coefficients, coefficients)


def cross_validate(weights: Float64, losses: Float64, counts: Float64) -> tuple[Float64, Float64]:
    """(the best strength of each loss, float64 [losses]; predictions of left-out mixtures, float64 [mixtures, losses]).

    weights   float64 [mixtures, subsets], all different
    losses    float64 [mixtures, losses], the geometric means of each mixture's runs
    counts    float64 [mixtures]: the runs of each, which are left out together
    """
    known, logs, share = features(weights), np.log(losses), counts / counts.sum()
    centred, residuals = known - share @ known, logs - share @ logs
    values, vectors = np.linalg.eigh((centred * share[:, None]).T @ centred)
    rotated = centred @ vectors
    left_out = np.empty((len(STRENGTHS), *logs.shape))
    for place, strength in enumerate(STRENGTHS):
        scaled = rotated / (values.clip(0) + strength)
        own_share = share * (1 + (scaled * rotated).sum(axis=1))
        left_out[place] = (residuals - scaled @ ((rotated * share[:, None]).T @ residuals)) / (1 - own_share)[:, None]
    best = (left_out**2).mean(axis=1).argmin(axis=0)
    errors = np.take_along_axis(left_out, best[None, None, :], axis=0)[0]
    return STRENGTHS[best], np.exp(logs - errors)


def rank_correlation(predicted: Float64, measured: Float64) -> float | None:
    """Spearman's, float64 [n] each; equal values share their mean rank. None if all values of one are equal."""
    first, second = (_ranks(values) for values in (predicted, measured))
    spread = first.std() * second.std()
    return float(((first - first.mean()) * (second - second.mean())).mean() / spread) if spread else None


def _ranks(values: Float64) -> Float64:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Float64 = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
