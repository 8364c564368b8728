"""`open_logs`: rank 0 writes the figures of steps to metrics.jsonl and its viewers, and warns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.alerts import Watch
from pilekit.train.log.metrics import StepLog, StepMetrics, read_metrics
from pilekit.train.log.viewers import open_tensorboard, open_wandb
from pilekit.train.run_folder import RunFolder
from pilekit.workers.ranks import Ranks


@contextmanager
def open_logs(
    run: RunFolder, config: TrainConfig, ranks: Ranks, remedy: str, peek: Callable[[int], str], step: int
) -> Iterator[Callable[[StepMetrics], None]]:
    """Yield a function that every rank calls with every step's figures. Figures of steps after `step` are dropped.

    metrics.jsonl, TensorBoard and Weights & Biases get every `log.every`-th step, the last step, and steps with
    bits per byte. Every step is checked for warnings (alerts.py). A PilekitError of a call is raised on rank 0
    alone. If lines cannot be written at the end of the block, all ranks raise. `remedy` and `peek` are
    those of `Watch`.
    """
    logs: list[Callable[[StepMetrics], None]] = []
    watches: list[Watch] = []

    def begin() -> None:
        logs.append(opened.enter_context(StepLog(run.metrics_file, StepMetrics, resume_step=step)).write)
        if config.log.tensorboard:
            logs.append(opened.enter_context(open_tensorboard(run.path / "tensorboard", resume_step=step)))
        if config.log.wandb:
            logs.append(opened.enter_context(open_wandb(run.path, config)))
        watches.append(Watch(peek, remedy, read_metrics(run.metrics_file)))

    def write(metrics: StepMetrics) -> None:
        measured = metrics.bpb is not msgspec.UNSET
        if metrics.step % config.log.every == 0 or metrics.step == config.steps or measured:
            for log in logs:
                log(metrics)
        for watch in watches:
            watch.write(metrics)

    with ExitStack() as opened:
        ranks.on_rank0(begin)
        yield write
        ranks.on_rank0(opened.close)
