"""`fit_mixtures`: a table of small runs in, the mixture with the least predicted loss out, or the reason for none.

    read_runs -> cross_validate -> fit_law -> best_mixture
                                   again on resamples of the runs -> intervals

A left-out mixture is left out with all its runs (replicates). Their spread is the noise: what another seed changes.
The gain is how much lower the target is predicted for the best mixture than for the corpus's own shares. Whoever takes
the best of many predictions takes their errors too. So its interval says how much of a gain is left when the mixture is
chosen on a resample of the runs and judged by all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pilekit.display.wrong_names import nearest_of
from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.results.intervals import resamples
from pilekit.mixtures.optimum import best_mixture, rounded
from pilekit.mixtures.regression import LossLaw, cross_validate, fit_law, rank_correlation
from pilekit.mixtures.result import MixtureFit, MixtureSubset
from pilekit.mixtures.run_table import Float64, RunTable, read_runs

RESAMPLES = 400


def fit_mixtures(
    table: str | Path | Sequence[str | Path],
    *,
    target: str | Sequence[str] = "overall",
    shares: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
    weight_columns: str | None = None,
    loss_columns: str | None = None,
) -> MixtureFit:
    """Fit runs of different mixtures, and choose the best mixture.

    table            the folder of a design whose runs are done; or a .csv or .parquet file with a row per run and the
                     columns `weight.NAME` and `loss.NAME`; or several, whose rows are joined by columns that they share
    target           what shall be low: "overall", the losses weighted by the corpus's own shares; "equal", their mean;
                     or names of subsets, as a list or with commas, for the mean of these
    shares           the corpus's own shares, by subset. Default: those of the design, or else the mean of the mixtures
    caps             the largest weight of a subset. Default: that of the design, or else the most that any run has,
                     because nothing is known beyond
    weight_columns   other names of columns, with `*` for the subset's: "train_*"
    loss_columns     the same for the losses: "metric/*_val_loss"

    PilekitError for a table that cannot be read, a name that it does not have, and caps that no mixture keeps.
    """
    paths = [table] if isinstance(table, str | Path) else list(table)
    return fit_runs(read_runs(paths, weight_columns, loss_columns), target, shares, caps)


def fit_runs(
    runs: RunTable,
    target: str | Sequence[str] = "overall",
    shares: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
) -> MixtureFit:
    """The fit of these runs; the other arguments are those of `fit_mixtures`."""
    order = np.lexsort([*runs.losses.T, *runs.weights.T])  # so that the order of the table changes nothing
    weights, losses = runs.weights[order], runs.losses[order]
    mixtures, places, counts = np.unique(weights.round(9), axis=0, return_inverse=True, return_counts=True)
    if len(mixtures) < 3:
        raise PilekitError(f"{runs.source}: has {len(mixtures)} different mixtures; a fit takes at least 3")
    own = _own_shares(runs, runs.shares if shares is None else shares)
    most = _caps(runs, {**(runs.caps or {}), **(caps or {})})
    goal = _goal(runs, target, dict(zip(runs.subsets, own, strict=True)))

    logs = np.log(losses)
    means = np.stack([np.bincount(places, column) / counts for column in logs.T], axis=1)
    strengths, held_out = cross_validate(mixtures, np.exp(means), counts.astype(np.float64))
    law = fit_law(weights, losses, strengths)
    starts = np.stack([own, *mixtures[(law.losses(mixtures) @ goal).argsort()[:3]]])
    best = rounded(best_mixture(law, goal, most, starts), most)
    gain = float(_gain(law, goal, best, own))

    laws = [
        fit_law(weights, losses, strengths, times.astype(np.float64)) for times in resamples(len(logs)).T[:RESAMPLES]
    ]
    others = LossLaw(np.stack([law.intercepts for law in laws]), np.stack([law.coefficients for law in laws]))
    chosen = best_mixture(others, goal, most, np.stack([own, best]))
    overrated = _gain(others, goal, chosen, own) - _gain(law, goal, chosen, own)
    low, high = np.percentile(overrated, [2.5, 97.5])

    spare = len(logs) - len(mixtures)

    def noise(values: Float64, middle: Float64) -> Float64:
        """The standard deviation between runs of one mixture, along the first axis."""
        deviations: Float64 = np.sqrt(((values - middle[places]) ** 2).sum(axis=0) / max(spare, 1))
        return deviations

    targets = np.log(losses @ goal)
    target_means = np.bincount(places, targets) / counts
    errors, wrong = np.log(held_out) - means, np.log(held_out @ goal) - target_means
    noises = noise(logs, means)
    ends = np.percentile(chosen, [2.5, 97.5], axis=0)
    subsets = {
        name: MixtureSubset(
            share=float(own[place]),
            weight=float(best[place]),
            interval=(float(ends[0, place]), float(ends[1, place])),
            cap=float(most[place]),
        )
        for place, name in enumerate(runs.subsets)
    }
    for place, name in enumerate(runs.evaluated):
        subsets[name] = replace(
            subsets.get(name, MixtureSubset()),
            spearman=rank_correlation(held_out[:, place], np.exp(means[:, place])),
            error=float(np.sqrt((errors[:, place] ** 2).mean())),
            noise=float(noises[place]) if spare else None,
        )
    return MixtureFit(
        target=target if isinstance(target, str) else ",".join(target),
        runs=len(logs),
        mixtures=len(mixtures),
        own_shares_known=shares is not None or runs.shares is not None,
        spearman=rank_correlation(held_out @ goal, np.exp(target_means)),
        error=float(np.sqrt((wrong**2).mean())),
        noise=float(noise(targets, target_means)) if spare else None,
        gain=gain,
        gain_interval=(float(gain - high), float(gain - low)),
        subsets=subsets,
        law=law,
    )


def _gain(law: LossLaw, goal: Float64, mixture: Float64, own: Float64) -> Float64:
    """By which share the predicted target of each mixture, float64 [..., subsets], is lower than that of `own`."""
    pairs = np.stack([np.broadcast_to(own, mixture.shape), mixture], axis=-2)
    targets = law.losses(pairs) @ goal
    gain: Float64 = 1 - targets[..., 1] / targets[..., 0]
    return gain


def _own_shares(runs: RunTable, given: Mapping[str, float] | None) -> Float64:
    """The corpus's own shares, float64 [subsets], with the sum 1."""
    if given is None:
        mean: Float64 = runs.weights.mean(axis=0)
        return mean
    own = _by_subset(runs, "shares", given, np.zeros(len(runs.subsets)))
    if not (total := float(own.sum())):
        raise PilekitError("shares are 0 for every subset; give the corpus's own")
    shares: Float64 = own / total
    return shares


def _caps(runs: RunTable, given: Mapping[str, float]) -> Float64:
    """The caps, float64 [subsets]."""
    caps: Float64 = _by_subset(runs, "caps", given, runs.weights.max(axis=0)).clip(max=1)
    if caps.sum() < 1:
        raise PilekitError(f"caps sum to {caps.sum():.4g}, so no mixture keeps them; raise some, to a sum above 1")
    return caps


def _by_subset(runs: RunTable, argument: str, given: Mapping[str, float], default: Float64) -> Float64:
    values = default.copy()
    for name, number in given.items():
        if name not in runs.subsets:
            raise PilekitError(f"{argument}: no subset {shortened(name, 60)}; {nearest_of(name, runs.subsets)}")
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise PilekitError(f"{argument} of {shortened(name, 60)}: {shortened(number, 60)} is no share from 0 to 1")
        values[runs.subsets.index(name)] = number
    return values


def _goal(runs: RunTable, target: str | Sequence[str], own: Mapping[str, float]) -> Float64:
    """The weight of each loss in the target, float64 [losses], with the sum 1."""
    names = [name.strip() for name in target.split(",")] if isinstance(target, str) else list(target)
    if names == ["equal"]:
        names = list(runs.evaluated)
    if names == ["overall"]:
        goal = np.array([own.get(name, 0.0) for name in runs.evaluated])
        if not goal.sum():
            raise PilekitError(
                f"{runs.source}: no loss is of a subset with a share, so none is weighted; give the target equal, or "
                f"names: {shortened(', '.join(runs.evaluated), 200)}"
            )
    else:
        if unknown := [name for name in names if name not in runs.evaluated]:
            choices = ["overall", "equal", *runs.evaluated]
            raise PilekitError(f"target {shortened(unknown[0], 60)!r}: no such loss; {nearest_of(unknown[0], choices)}")
        goal = np.array([float(name in names) for name in runs.evaluated])
    shares: Float64 = goal / goal.sum()
    return shares
