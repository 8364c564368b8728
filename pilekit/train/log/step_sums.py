"""The losses, waiting times and memory of a step, added up over all ranks in one message.

Ranks see different rows, so each knows only a part of the step. Everything is sent as numbers to add: a loss is a sum
and a count, and each rank has its own place for its seconds and bytes. Losses are summed in float64, in the order of
ranks, so all ranks get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pilekit.engine.ranks import Ranks
from pilekit.train.step.losses import subset_sums


@dataclass(frozen=True, slots=True)
class StepSums:
    """A step over all ranks.

    loss       mean over the step's targets, in nats; may be infinite, and is NaN if there is no target
    by_subset  the same for each subset with a target, in the order of the names; finite ones only
    waited     seconds that the slowest rank waited for data
    memory     bytes of the rank with the most memory
    """

    loss: float
    by_subset: dict[str, float]
    waited: float
    memory: int

    @classmethod
    def over(
        cls,
        ranks: Ranks,
        nll: Tensor,
        batch: Mapping[str, Tensor],
        subset_names: Sequence[str],
        *,
        waited: float,
        memory: int,
    ) -> StepSums:
        """Add up all ranks; `nll` holds the losses of this rank's batch, as `clm_loss` returns them."""
        own = torch.zeros(2, ranks.world_size, dtype=torch.float64)
        own[:, ranks.rank] = torch.tensor([waited, memory], dtype=torch.float64)
        sums, counts = subset_sums(nll.cpu(), batch, len(subset_names))
        total_of_ranks = ranks.sum(torch.cat([own.flatten(), sums, counts]))
        waits, memories, sums, counts = torch.split(total_of_ranks, [*[ranks.world_size] * 2, *[len(subset_names)] * 2])
        by_subset = {
            name: total / count
            for name, total, count in zip(subset_names, sums.tolist(), counts.tolist(), strict=True)
            if count and math.isfinite(total)
        }
        loss = float(sums.sum() / counts.sum())
        return cls(loss, by_subset, float(waits.max()), int(memories.max()))
