"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    step: int, *, steps: int, lr: float, kind: Literal["constant", "cosine"], warmup: int, min_lr: float
) -> float:
    """The rate that optimizer step number `step`, counted from 0, uses.

    The first `warmup` steps rise in equal parts, lr / warmup to lr. Then "constant" stays at `lr`, and "cosine" begins
    at `lr` and goes down by half a cosine to `min_lr`, which it would reach at step number `steps`, the first one that
    is not taken.
    """
    if step < warmup:
        return lr * (step + 1) / warmup
    if kind == "constant":
        return lr
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * done)) / 2
