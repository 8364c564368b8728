"""What is written down of the steps, and by whom: rank 0, into metrics.jsonl, for TensorBoard, and as warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from pilekit.engine.ranks import Ranks
from pilekit.stream import PileStream
from pilekit.train.checkpoint import Checkpoints
from pilekit.train.config import TrainConfig
from pilekit.train.log.alerts import Watch, against_waiting
from pilekit.train.log.metrics import MetricsLog, StepMetrics, read_metrics
from pilekit.train.log.peek import inspect_step_command
from pilekit.train.log.tensorboard import TensorBoardLog
from pilekit.train.run_folder import RunFolder


@contextmanager
def open_logs(
    run: RunFolder, config: TrainConfig, ranks: Ranks, stream: PileStream, checkpoints: Checkpoints, step: int
) -> Iterator[Callable[[StepMetrics], None]]:
    """Yield what every rank calls with every step's figures; a run goes on after `step`, and what is later is dropped.

    metrics.jsonl and TensorBoard have every `log.every`-th step, the last, and those after which bits per byte were
    measured. Every step is looked at for what needs a look (see watch.py). PilekitError of a call is rank 0's alone;
    where the block ends well, that lines could not be written is one on all ranks.
    """
    logs: list[MetricsLog | TensorBoardLog] = []
    watches: list[Watch] = []

    def begin() -> None:
        logs.append(opened.enter_context(MetricsLog(run.metrics_file, resume_step=step)))
        if config.log.tensorboard:
            logs.append(opened.enter_context(TensorBoardLog(run.path / "tensorboard", resume_step=step)))

        def peek(number: int) -> str:
            return inspect_step_command(config, stream, number, checkpoints.before(number))

        watches.append(Watch(peek, against_waiting(stream), read_metrics(run.metrics_file)))

    def write(metrics: StepMetrics) -> None:
        measured = metrics.bpb is not msgspec.UNSET
        if metrics.step % config.log.every == 0 or metrics.step == config.steps or measured:
            for log in logs:
                log.write(metrics)
        for watch in watches:
            watch.write(metrics)

    def end() -> None:
        for log in logs:
            log.close()

    with ExitStack() as opened:
        ranks.on_rank0(begin)
        yield write
        ranks.on_rank0(end)
