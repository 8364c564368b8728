"""`figures`: the figures of a step, as a line of metrics.jsonl."""

from __future__ import annotations

import math

from pilekit.train.checkpoint.manifest import Progress
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.step.engine import Update
from pilekit.train.step.losses import StepSums


def figures(
    done: Progress,
    sums: StepSums,
    update: Update,
    *,
    lr: float,
    rates: dict[str, float],
    scale: float | None,
    tokens: int,
    places: int,
    seconds: float,
    full_speed: float | None,
) -> StepMetrics:
    """The figures of step `done.step`, which had `tokens` in rows with room for `places`, and took `seconds`.

    rates        the learning rate of each group
    full_speed   tokens per second at the ranks' published peak; None if it is not known
    """
    speed = tokens / seconds
    return StepMetrics(
        step=done.step,
        loss=sums.loss if math.isfinite(sums.loss) else None,
        loss_by_subset=sums.by_subset,
        lr=lr,
        lr_by_group=rates,
        grad_norm=None if update.skipped else update.grad_norm,
        update_norm=update.update_norm,
        tokens=done.tokens,
        padding=1 - tokens / places,
        tokens_per_second=speed,
        data_wait=min(1.0, sums.waited / seconds),
        step_seconds=seconds,
        memory_bytes=max(sums.memory.get("GPU", sums.memory["CPU"])),
        mfu=None if full_speed is None else speed / full_speed,
        loss_scale=scale,
        skipped=done.skipped,
    )
