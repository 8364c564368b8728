"""`MixtureFit`: the best mixture that runs lead to, what it is worth, and how well the fit predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.display.table_result import Result, TableResult
from pilekit.display.wrong_names import nearest_of
from pilekit.errors import PilekitError, counted, shortened
from pilekit.mixtures.regression import FLOOR, LossLaw

Limits = tuple[float, float]
_Row = tuple[str, "MixtureSubset"]

FEWEST = 32
"""Fewer different mixtures say too little: on RegMix's runs the ranks of 32 are right by 0.90, those of 64 by 0.95."""

TWO_RUNS = 1.96 * math.sqrt(2)
"""Two runs of one mixture differ by more than so many standard deviations in one of 20 cases."""


@dataclass(frozen=True, slots=True)
class MixtureSubset(Result):
    """A subset in a fit; None where a table has no weights or no loss of it, or no replicates.

    share      its share in the corpus
    weight     its weight in the best mixture
    interval   in which 95 % of the best mixtures of resampled runs have its weight
    cap        the largest weight that it may have
    spearman   rank correlation of its losses with those predicted for mixtures that were left out
    error      root mean square of the errors of these predictions; 0.01 is 1 % of a loss
    noise      standard deviation of its loss between runs of one mixture; 0.01 is 1 %
    """

    share: float | None = None
    weight: float | None = None
    interval: Limits | None = None
    cap: float | None = None
    spearman: float | None = None
    error: float | None = None
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class MixtureFit(TableResult):
    """The result of `fit_mixtures`. `result["ArXiv"]` is the `MixtureSubset` of a subset.

    target             what is low in the best mixture: "overall", "equal", or names of subsets
    runs, mixtures     number of runs, and of different mixtures among them
    own_shares_known   False: the mean of the mixtures stands for the corpus's own shares
    spearman, error    of the target, as those of a subset
    noise              standard deviation of the target between runs of one mixture; None if no mixture has two runs
    gain               by which share the predicted target is lower than that of the corpus's own shares
    gain_interval      its 95 % interval, by resampling the mixtures
    subsets            those with a weight in the order of the table, then those with a loss alone
    law                the fitted law, which `predict` uses
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("target", "runs", "mixtures", "own_shares_known", "spearman", "error", "noise"),
        *("gain", "gain_interval", "refused", "weights", "floor", "subsets"),
    )

    target: str
    runs: int
    mixtures: int
    own_shares_known: bool
    spearman: float | None
    error: float
    noise: float | None
    gain: float
    gain_interval: Limits
    subsets: dict[str, MixtureSubset]
    law: LossLaw = field(repr=False, compare=False)

    @property
    def refused(self) -> str | None:
        """Why no mixture is recommended; None if one is."""
        if self.mixtures < FEWEST:
            return f"there are {self.mixtures} different mixtures, and under {FEWEST} say too little"
        if self.spearman is None or self.spearman < 2 / math.sqrt(self.mixtures - 1):
            return "mixtures that were left out are not ranked better than by chance"
        if self.noise is not None and self.gain <= TWO_RUNS * self.noise:
            return f"the gain is within the noise: two runs of one mixture differ by up to {TWO_RUNS * self.noise:.2%}"
        if self.gain_interval[0] <= 0:
            return "the interval of the gain holds 0"
        return None

    @property
    def weights(self) -> dict[str, float] | None:
        """The best mixture, as `weights` of a stream and of `[data]` take it; None if none is recommended."""
        if self.refused is not None:
            return None
        return {name: subset.weight for name, subset in self.subsets.items() if subset.weight}

    @property
    def floor(self) -> float:
        """What is added to a weight before its logarithm is taken, so that a weight of 0 has one."""
        return FLOOR

    def predict(self, weights: Mapping[str, float]) -> dict[str, float]:
        """The predicted loss of each subset for a mixture; subsets that it does not name have no part.

        PilekitError for a name that the runs have no weights of, and for a mixture without a positive weight.
        """
        names = [name for name, subset in self.subsets.items() if subset.share is not None]
        if unknown := [name for name in weights if name not in names]:
            raise PilekitError(f"weights: no subset {shortened(unknown[0], 60)}; {nearest_of(unknown[0], names)}")
        mixture = np.array([float(weights.get(name, 0.0)) for name in names])
        if not (mixture >= 0).all() or not 0 < mixture.sum() < np.inf:
            raise PilekitError("weights are numbers from 0, and not all 0")
        evaluated = [name for name, subset in self.subsets.items() if subset.error is not None]
        (losses,) = self.law.losses(mixture[None] / mixture.sum())
        return dict(zip(evaluated, map(float, losses), strict=True))

    def _rows(self) -> dict[str, MixtureSubset]:
        """The subsets."""
        return self.subsets

    def __repr__(self) -> str:
        return f"MixtureFit(target={self.target!r}, mixtures={self.mixtures}, gain={self.gain:.4f})"

    def table(self) -> FittedTable[_Row]:
        """A row per subset, and the target; sentences on the gain below."""

        def interval(row: _Row) -> str:
            limits = row[1].interval
            return DASH if limits is None else f"{limits[0]:.4f}–{limits[1]:.4f}"

        def number(title: str, name: str, digits: int, scale: float = 1.0) -> Column[_Row]:
            def cell(row: _Row) -> str:
                value = getattr(row[1], name)
                return DASH if value is None else f"{scale * value:.{digits}f}"

            return Column(title, cell)

        columns = [
            Column[_Row]("Subset", lambda row: row[0]),
            number("Corpus", "share", 4),
            number("Best", "weight", 4),
            Column("95 % interval", interval),
            number("Cap", "cap", 4),
            number("Rank\ncorr.", "spearman", 3),
            number("Error\n%", "error", 2, 100),
            number("Noise\n%", "noise", 2, 100),
        ]
        target = MixtureSubset(spearman=self.spearman, error=self.error, noise=self.noise)
        priority = ("Noise\n%", "Cap", "Error\n%")
        return FittedTable(list(self.subsets.items()), columns, [("Target", target)], priority, notes=self.sentences())

    def sentences(self) -> list[str]:
        """What the figures say, a line each; the last is why no mixture is recommended, if none is."""
        low, high = self.gain_interval
        against = "the corpus's own shares" if self.own_shares_known else "the mean of these mixtures"
        lines = [
            f"target {self.target}, from {counted(self.runs, 'run')} of {counted(self.mixtures, 'mixture')}",
            f"predicted gain over {against}: {self.gain:.2%}, interval {low:.2%} to {high:.2%}",
        ]
        if self.noise is None:
            lines.append("noise unknown: no mixture has two runs, so only the interval shows it")
        return [*lines, *([] if self.refused is None else [f"no recommendation: {self.refused}"])]


def as_toml(weights: Mapping[str, float]) -> str:
    """A mixture as an inline table of TOML, which `--set data.weights=` takes too."""
    return "{" + ", ".join(f"{_key(name)} = {weight:g}" for name, weight in weights.items()) + "}"


def _key(name: str) -> str:
    """A name as a key of TOML, all that is not printable spelt out."""
    if name and all(character.isascii() and (character.isalnum() or character in "_-") for character in name):
        return name
    spelt = (
        f"\\{character}" if character in '"\\' else character if character.isprintable() else f"\\U{ord(character):08x}"
        for character in name
    )
    return f'"{"".join(spelt)}"'
