"""Laws of losses whose best mixture is known, and runs that obey them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pilekit.mixtures.run_table import Float64, RunTable

RESERVE = 0.002


@dataclass(frozen=True)
class PowerLaw:
    """The loss on each subset falls with its own weight alone: floor + scale x (weight + RESERVE) ** -power.

    It is not the law that is fitted. The least mean of all losses has a closed form, by Lagrange's multiplier.
    """

    floor: Float64
    scale: Float64
    power: float = 0.15

    @classmethod
    def drawn(cls, subsets: int, seed: int) -> PowerLaw:
        draw = np.random.default_rng(seed)
        return cls(draw.uniform(0.4, 0.9, subsets), draw.uniform(0.15, 0.4, subsets))

    def losses(self, weights: Float64) -> Float64:
        return self.floor + self.scale * (weights + RESERVE) ** -self.power

    @property
    def best(self) -> Float64:
        parts = self.scale ** (1 / (1 + self.power))
        weights = parts / parts.sum() * (1 + RESERVE * len(parts)) - RESERVE
        assert weights.min() > 0
        return weights


def names(subsets: int) -> tuple[str, ...]:
    return tuple(f"Subset {number}" for number in range(subsets))


def runs_of(law: PowerLaw, runs: int, seed: int, *, noise: float = 0.003, replicates: int = 8) -> RunTable:
    """Runs of mixtures around unequal shares, the first few of the shares themselves, in a random order."""
    draw = np.random.default_rng(seed)
    shares = draw.dirichlet(np.full(len(law.floor), 2.0))
    mixtures = np.stack([draw.dirichlet(shares * len(shares) * (1, 4)[run % 2] + 1e-9) for run in range(runs)])
    mixtures[:replicates] = shares
    mixtures = mixtures[draw.permutation(runs)]
    losses = law.losses(mixtures) * np.exp(draw.normal(0, noise, mixtures.shape))
    own = dict(zip(names(len(shares)), shares.tolist(), strict=True))
    return RunTable("runs", names(len(shares)), names(len(shares)), mixtures, losses, own, dict.fromkeys(own, 1.0))
