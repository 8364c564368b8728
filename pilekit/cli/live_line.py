"""The live line of training: where it stands, on stderr, silent when stderr is not a terminal.

    step 900/1000  loss 3.215  lr 2.5e-04  12.3k tokens/s  wait 1%  3 min left

Here "wait" is the share of the step in which it waited for data. A step that was skipped without a loss shows the last
one; how many were skipped, and the newest bits per byte, stand at the end where there is room for them.
It appears with the first step and vanishes at the end, so that nothing of it is left among results; warnings that come
meanwhile are printed above it. The time left is the mean time of recent steps, newer ones counting more, times the
steps that are left: one slow step (a checkpoint, a cold cache) does not throw it off, and a run that slows down shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from pilekit.train.log.metrics import StepMetrics

WEIGHT_OF_NEWEST = 0.05
"""Of a step among all before it: the last 20 steps make up two thirds of the mean."""


@contextmanager
def live_line(steps: int) -> Iterator[Callable[[StepMetrics], None]]:
    """Show each step's figures; yields the function to call with them. `steps` is where training ends."""
    if not sys.stderr.isatty():
        yield lambda metrics: None
        return
    console = Console(stderr=True)
    live = Live(console=console, transient=True, refresh_per_second=5)
    seconds = 0.0
    seen = 0
    loss = bpb = None

    def show(metrics: StepMetrics) -> None:
        nonlocal seconds, seen, loss, bpb
        seen += 1
        loss = metrics.loss if metrics.loss is not None else loss
        bpb = (metrics.bpb and metrics.bpb.overall) or bpb
        # The plain mean at first: else the very first step, which is slow, would stand for all.
        seconds += (metrics.step_seconds - seconds) * max(WEIGHT_OF_NEWEST, 1 / seen)
        live.update(Text(line_of(metrics, steps, seconds, loss, bpb, console.width)))
        live.start()

    try:
        yield show
    finally:
        live.stop()


def line_of(
    metrics: StepMetrics,
    steps: int,
    seconds: float,
    loss: float | None = None,
    bpb: float | None = None,
    columns: int = 80,
) -> str:
    """The line, where a step takes `seconds`, the newest loss is `loss` and the newest bits per byte `bpb`.

    It fits into `columns`, of which it needs 80 up to step 99,999 and losses below 10.
    """
    loss = metrics.loss if metrics.loss is not None else loss
    line = "  ".join(
        (
            f"step {metrics.step}/{steps}",
            "no loss" if loss is None else f"loss {loss:.3f}",
            f"lr {metrics.lr:.1e}",
            f"{short_count(metrics.tokens_per_second)} tokens/s",
            f"wait {metrics.data_wait:.0%}",
            f"{duration(seconds * max(0, steps - metrics.step))} left",
        )
    )
    more = [f"  skipped {metrics.skipped}"] if metrics.skipped else []
    more += [] if bpb is None else [f"  bpb {bpb:.4f}"]
    for text in more:
        line += text if len(line + text) <= columns else ""
    return line


def short_count(number: float) -> str:
    """Three digits or so: `950`, `12.3k`, `4.56M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            scaled = number / size
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Rounded, in one unit: `45 s`, `12 min`, `3.2 h`, `2.1 d`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"
