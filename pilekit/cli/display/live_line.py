"""The live line of training on stderr. It is silent if stderr is not a terminal.

    step 900/1000  loss 3.215  lr 2.5e-04  12.3k tokens/s  wait 1%  3 min left

"wait" is the share of the step's time spent waiting for data. A skipped step without a loss shows the last loss. If
there is room, the number of skipped steps and the newest bits per byte follow. Until the first step is done, the line
says so. It vanishes at the end. Warnings are printed above it.

The time left is the number of remaining steps times the mean step time, in which recent steps weigh more. One slow step
(a checkpoint, a cold cache) hardly changes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pilekit.display.fitted_table import rounded_count
from pilekit.display.progress import waiting

if TYPE_CHECKING:
    from pilekit.train.log.metrics import StepMetrics

NEWEST_WEIGHT = 0.05
"""Weight of the newest step in the mean step time. The last 20 steps make up two thirds of the mean."""


@contextmanager
def live_line(steps: int) -> Iterator[Callable[[StepMetrics], None]]:
    """Yield a function that shows a step's figures. `steps` is the last step of the run."""
    if not sys.stderr.isatty():
        yield lambda metrics: None
        return
    console = Console(stderr=True, soft_wrap=True)  # Standard error itself breaks the messages above the line.
    live = Live(console=console, transient=True, refresh_per_second=5)
    mean_seconds = 0.0
    steps_shown = 0
    loss = bpb = None

    def show(metrics: StepMetrics) -> None:
        nonlocal mean_seconds, steps_shown, loss, bpb
        first.close()
        steps_shown += 1
        loss = metrics.loss if metrics.loss is not None else loss
        bpb = (metrics.bpb and metrics.bpb.overall) or bpb  # most steps have no new value
        # A plain mean at first. Otherwise the first step, which is slow, would dominate.
        mean_seconds += (metrics.step_seconds - mean_seconds) * max(NEWEST_WEIGHT, 1 / steps_shown)
        live.update(Text(line_of(metrics, steps, mean_seconds, loss, bpb, console.width)))
        live.start()  # does nothing after the first step

    with ExitStack() as first:
        first.enter_context(waiting("starting the first step"))
        try:
            yield show
        finally:
            live.stop()


def line_of(
    metrics: StepMetrics, steps: int, mean_seconds: float, loss: float | None, bpb: float | None, columns: int
) -> str:
    """The line for the newest step, the mean step time, the newest loss and the newest bits per byte.

    Parts after the time left fit into `columns`. The rest needs at most 80 up to step 99,999 and losses below 10.
    """
    line = "  ".join(
        (
            f"step {metrics.step}/{steps}",
            "no loss" if loss is None else f"loss {loss:.3f}",
            f"lr {metrics.lr:.1e}",
            f"{rounded_count(metrics.tokens_per_second)} tokens/s",
            f"wait {metrics.data_wait:.0%}",
            f"{duration(mean_seconds * max(0, steps - metrics.step))} left",
        )
    )
    skipped = f"  skipped {metrics.skipped}" if metrics.skipped else ""
    for text in (skipped, "" if bpb is None else f"  bpb {bpb:.4f}"):
        line += text if len(line + text) <= columns else ""
    return line


def duration(seconds: float) -> str:
    """Rounded to one unit: `45 s`, `12 min`, `3.2 h`, `2.1 d`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"
