"""The learning rate as a pure function of the step: nothing to save, nothing to restore.

Every kind is a warmup and then a share of the way from `lr` to `min_lr`, so a rate follows from four numbers and can be
looked up for any step. Runs with "wsd" can be lengthened: before the decay, the rate does not depend on the number of
steps.
"""

from __future__ import annotations

import math

from pilekit.train.config.sections import ScheduleConfig


def learning_rate(step: int, *, steps: int, lr: float, schedule: ScheduleConfig) -> float:
    """The rate that optimizer step number `step`, counted from 0, uses in a run of `steps`.

    The first `schedule.warmup` steps rise in equal parts, lr / warmup to lr. Then "constant" stays at `lr`. The others
    begin at `lr` and would reach `schedule.min_lr` at step number `steps`, the first step after the run: "linear" in a
    straight line, "cosine" by half a cosine, "polynomial" by a power of the share of steps that remain, "exponential"
    by the same factor in every step, and "wsd" in a straight line over its last `decay_steps`. Beyond `steps` they stay
    at `min_lr`.
    """
    if step < schedule.warmup:
        return lr * (step + 1) / schedule.warmup
    begin = schedule.warmup if schedule.kind != "wsd" else steps - decay_steps(steps, schedule.decay_share)
    remaining = 1.0 - min(1.0, max(0.0, (step - begin) / max(1, steps - begin)))
    match schedule.kind:
        case "constant":
            return lr
        case "exponential":
            return math.pow(lr, remaining) * math.pow(schedule.min_lr, 1.0 - remaining)
        case "linear" | "wsd":
            share = remaining
        case "cosine":
            share = (1 - math.cos(math.pi * remaining)) / 2
        case "polynomial":
            share = math.pow(remaining, schedule.power)
    return schedule.min_lr + (lr - schedule.min_lr) * share


def most_warmup(steps: int, schedule: ScheduleConfig) -> int:
    """The longest warmup in a run of `steps`. "wsd" falls behind it."""
    return steps - (decay_steps(steps, schedule.decay_share) if schedule.kind == "wsd" else 0)


def decay_steps(steps: int, share: float) -> int:
    """Number of steps at the end of a "wsd" schedule in which the rate falls, at least one."""
    return max(1, round(steps * share))
