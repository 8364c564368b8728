"""The best mixture of laws whose best mixture is known, of noise alone, and of RegMix's published runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pilekit import PilekitError, fit_mixtures
from pilekit.mixtures.fit import fit_runs
from pilekit.mixtures.regression import cross_validate, fit_law, rank_correlation
from pilekit.mixtures.run_table import RunTable, read_runs
from tests.mixtures.laws import PowerLaw, runs_of


def regret(law: PowerLaw, runs: RunTable) -> float:
    """By which share the mean loss of the chosen mixture is above the least."""
    fit = fit_runs(runs, "equal")
    chosen = np.array([fit.subsets[name].weight for name in runs.subsets])
    return float(law.losses(chosen).mean() / law.losses(law.best).mean() - 1)


@pytest.mark.parametrize("subsets", [3, 8, 15])
def test_the_chosen_mixture_of_a_known_law_is_within_one_per_cent_of_its_best(subsets: int) -> None:
    regrets = [regret(law := PowerLaw.drawn(subsets, seed), runs_of(law, 64, seed)) for seed in range(5)]
    assert max(regrets) <= 0.01
    assert min(regrets) >= 0


def test_the_best_of_a_known_law_is_its_best() -> None:
    law = PowerLaw.drawn(5, 1)
    others = np.vstack([np.random.default_rng(0).dirichlet(np.ones(5), 50_000), law.best])
    assert law.losses(others).mean(axis=1).argmin() == len(others) - 1


def test_figures_are_those_of_plain_sums() -> None:
    law = PowerLaw.drawn(4, 2)
    runs = runs_of(law, 50, 2, noise=0.01)
    fit = fit_runs(runs, "Subset 1,Subset 3")
    same = [row for row in range(50) if np.allclose(runs.weights[row], list((runs.shares or {}).values()))]
    assert (fit.runs, fit.mixtures, len(same)) == (50, 43, 8)
    logs = np.log(runs.losses[same])
    assert fit["Subset 2"].noise == pytest.approx(logs[:, 2].std(ddof=1))
    target = np.log(runs.losses[same][:, [1, 3]].mean(axis=1))
    assert fit.noise == pytest.approx(target.std(ddof=1))
    mine = fit.predict({name: subset.weight or 0 for name, subset in fit.subsets.items()})
    own = fit.predict(runs.shares or {})
    gain = 1 - (mine["Subset 1"] + mine["Subset 3"]) / (own["Subset 1"] + own["Subset 3"])
    assert fit.gain == pytest.approx(gain, rel=1e-6)
    assert sum(subset.weight or 0 for subset in fit.subsets.values()) == pytest.approx(1, abs=1e-9)


def test_the_order_of_runs_changes_nothing() -> None:
    runs = runs_of(PowerLaw.drawn(4, 3), 40, 3)
    order = np.random.default_rng(1).permutation(40)
    fit = fit_runs(runs, "equal")
    again = fit_runs(replace(runs, weights=runs.weights[order], losses=runs.losses[order]), "equal")
    assert again.gain_interval == pytest.approx(fit.gain_interval, rel=1e-6)
    for name, subset in fit.subsets.items():
        for figure, value in subset.to_dict().items():
            assert again[name].to_dict()[figure] == pytest.approx(value, rel=1e-6), (name, figure)


def test_nothing_is_recommended_where_too_little_is_known() -> None:
    law = PowerLaw.drawn(4, 2)
    few = fit_runs(runs_of(law, 38, 2), "equal")
    assert few.mixtures == 31
    assert few.weights is None
    assert few.refused == "there are 31 different mixtures, and under 32 say too little"
    assert fit_runs(runs_of(law, 39, 2), "equal").weights is not None


@pytest.mark.parametrize("replicates", [1, 8])
def test_noise_alone_is_hardly_ever_a_gain(replicates: int) -> None:
    recommended = 0
    for seed in range(12):
        runs = runs_of(PowerLaw.drawn(4, seed), 64, seed, replicates=replicates)
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, runs.losses.shape))
        fit = fit_runs(replace(runs, losses=noise), "equal")
        assert (fit.noise is None) == (replicates == 1)
        recommended += fit.weights is not None
    assert recommended <= 1


def test_caps_and_shares_are_those_of_the_table_unless_given(tmp_path: Path) -> None:
    runs = runs_of(PowerLaw.drawn(3, 7), 60, 7)
    header = ",".join([*(f"weight.{name}" for name in runs.subsets), *(f"loss.{name}" for name in runs.subsets)])
    rows = [
        ",".join(map(repr, [*weights, *losses]))
        for weights, losses in zip(runs.weights.tolist(), runs.losses.tolist(), strict=True)
    ]
    (tmp_path / "runs.csv").write_text("\n".join([header, *rows]))
    fit = fit_mixtures(tmp_path / "runs.csv", target="equal")
    assert not fit.own_shares_known
    assert [subset.share for subset in fit.subsets.values()] == pytest.approx(runs.weights.mean(axis=0))
    assert [subset.cap for subset in fit.subsets.values()] == pytest.approx(runs.weights.max(axis=0))
    one, *rest = runs.subsets
    given = fit_mixtures(tmp_path / "runs.csv", target="equal", shares={one: 1, rest[0]: 3}, caps={one: 0.05})
    assert [subset.share for subset in given.subsets.values()] == [0.25, 0.75, 0.0]
    assert given[one].weight == pytest.approx(0.05)
    assert given[one].interval == pytest.approx((0.05, 0.05))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "Subset9"}, "target 'Subset9': no such loss; did you mean"),
        ({"caps": {"Subset 0": 0.1, "Subset 1": 0.1, "Subset 2": 0.1}}, "caps sum to 0.3, so no mixture keeps them"),
        ({"caps": {"ArXiv": 1}}, "caps: no subset ArXiv; there are Subset 0, Subset 1, Subset 2"),
        ({"shares": {"Subset 0": -1}}, "shares of Subset 0: -1 is no share"),
        ({"shares": {"Subset 0": 0}}, "shares are 0 for every subset"),
    ],
)
def test_what_is_wrong_with_a_call_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(PilekitError, match=message):
        fit_runs(runs_of(PowerLaw.drawn(3, 7), 40, 7), **arguments)  # type: ignore[arg-type]


def test_a_loss_of_a_subset_without_a_share_is_not_in_the_overall_target() -> None:
    runs = runs_of(PowerLaw.drawn(3, 8), 40, 8)
    renamed = replace(runs, evaluated=("Subset 0", "other", "else"))
    assert fit_runs(renamed).gain == pytest.approx(fit_runs(renamed, "Subset 0").gain)
    assert fit_runs(renamed)["other"].share is None
    with pytest.raises(PilekitError, match="no loss is of a subset with a share"):
        fit_runs(replace(runs, evaluated=("x", "y", "z")))
    with pytest.raises(PilekitError, match="weights: no subset other"):
        fit_runs(renamed).predict({"other": 1})
    with pytest.raises(PilekitError, match="not all 0"):
        fit_runs(renamed).predict({"Subset 0": 0})


def spearmans(train: RunTable, test: RunTable, rows: np.ndarray) -> float:  # type: ignore[type-arg]
    strengths, _ = cross_validate(train.weights[rows], train.losses[rows], np.ones(len(rows)))
    predicted = fit_law(train.weights[rows], train.losses[rows], strengths).losses(test.weights)
    correlations = [rank_correlation(*columns) for columns in zip(predicted.T, test.losses.T, strict=True)]
    return float(np.mean([correlation or 0.0 for correlation in correlations]))


def test_published_runs_of_one_million_parameters_rank_those_of_sixty(real_corpus: Path) -> None:
    """RegMix: 512 mixtures at 1M parameters predict the ranks of 256 other mixtures at 60M on 13 subsets."""
    tables = real_corpus / "regmix"
    small = [tables / "train_mixture_1m.csv", tables / "train_pile_loss_1m.csv"]
    train, test = read_runs(small), read_runs([tables / "test_mixture_60m.csv", tables / "test_pile_loss_60m.csv"])
    assert (train.weights.shape, test.losses.shape) == ((512, 17), (256, 13))
    assert train.subsets == test.subsets
    assert spearmans(train, test, np.arange(512)) >= 0.97
    parts = [np.random.default_rng(seed).permutation(512)[:128] for seed in range(8)]
    assert np.mean([spearmans(train, test, rows) for rows in parts]) >= 0.96
    fit = fit_mixtures(small, target="the_pile_pile_cc")
    assert fit.weights is not None
    assert fit.weights["the_pile_pile_cc"] > 0.5
    assert min(subset.spearman or 1 for subset in fit.subsets.values()) > 0.9
