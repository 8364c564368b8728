"""What a step came to on all ranks, told in one message: losses, and who waited longest for data.

Ranks see different rows, so each knows a part of the step only. All parts are numbers that can be added: a loss is a
sum and a count, and what belongs to a rank (seconds, bytes) has a place of its own for each. Losses are summed in
float64 and in the order of ranks, so they are the same on all, to the bit.
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

    loss       mean over its targets, in nats; may be no finite number, and is none where there is no target
    by_subset  the same by subset, of those with a target, in the order of the names; finite ones only
    waited     seconds that the rank which waited longest waited for data
    memory     bytes of the rank that has most
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
        """Add up what all ranks tell; `nll` as `clm_loss` gives it, of all rows of the rank's batch."""
        own = torch.zeros(2, ranks.world_size, dtype=torch.float64)
        own[:, ranks.rank] = torch.tensor([waited, memory], dtype=torch.float64)
        sums, counts = subset_sums(nll.cpu(), batch, len(subset_names))
        told = ranks.sum(torch.cat([own.flatten(), sums, counts]))
        waits, memories, sums, counts = torch.split(told, [*[ranks.world_size] * 2, *[len(subset_names)] * 2])
        by_subset = {
            name: total / count
            for name, total, count in zip(subset_names, sums.tolist(), counts.tolist(), strict=True)
            if count and math.isfinite(total)
        }
        loss = float(sums.sum() / counts.sum())
        return cls(loss, by_subset, float(waits.max()), int(memories.max()))
