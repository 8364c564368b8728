"""The progress line on stderr: the part that is done, the rate, the time elapsed and left. Silent without a terminal.

It appears after half a second, so that quick commands stay quiet, and vanishes at the end. Readers report from their
decoding thread, which may run for a moment after the work has stopped. Reports after the end do not bring the line
back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from pilekit.errors import visible

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

QUIET_SECONDS = 0.5

Advance = Callable[[int], None]
"""Called with each further number of (stored, compressed) bytes that are done, from any thread."""

Report = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes done since the last call, and the step's total bytes; from any thread."""

Reached = Callable[[int, int], None]
"""Called with the number done and the total."""


@contextmanager
def byte_progress(what: str, total: int | None) -> Iterator[Advance]:
    """Show how many of `total` bytes are done. Yields the function to call with each further number of bytes.

    If `total` is None (a pipe, a server that does not say), the line shows bytes, rate and the time so far.
    """
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _line(what, total, DownloadColumn(), TransferSpeedColumn(), *_clock(left=total is not None)) as update:
        yield lambda amount: update(advance=amount)


@contextmanager
def step_progress() -> Iterator[Report]:
    """Show a line of bytes for each step of a job, one line at a time."""
    lock = threading.Lock()
    lines: dict[str, Advance] = {}
    with ExitStack() as shown:

        def advance(step: str, amount: int, total: int) -> None:
            with lock:
                if step not in lines:
                    shown.close()
                    lines[step] = shown.enter_context(byte_progress(step, total))
            lines[step](amount)

        yield advance


@contextmanager
def count_progress(what: str) -> Iterator[Reached]:
    """Show the number done and the total. Yields the function to call with both, as often as you like."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import MofNCompleteColumn

    shown = time.monotonic()

    def reached(done: int, total: int) -> None:
        nonlocal shown
        # Ten times a second: an update of rich takes longer than many small steps.
        if (now := time.monotonic()) >= shown + 0.1:
            shown = now
            update(completed=done, total=total)

    with _line(what, None, MofNCompleteColumn(), *_clock()) as update:
        yield reached


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show at once that work without progress reports is running, such as the import of torch."""
    if not sys.stderr.isatty():
        yield
        return
    with _line(what, None, *_clock(left=False), quiet=0.0) as update:
        update()
        yield


def _clock(*, left: bool = True) -> list[ProgressColumn]:
    """`0:00:12 elapsed, 0:01:20 left`."""
    from rich.progress import TextColumn, TimeElapsedColumn, TimeRemainingColumn

    elapsed = [TimeElapsedColumn(), TextColumn("elapsed," if left else "elapsed")]
    return [*elapsed, TimeRemainingColumn(), TextColumn("left")] if left else elapsed


@contextmanager
def _line(
    what: str, total: int | None, *columns: ProgressColumn, quiet: float = QUIET_SECONDS
) -> Iterator[Callable[..., None]]:
    """A line of rich. Yields its update function."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    text = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    progress = Progress(text, BarColumn(bar_width=None), *columns, console=console, transient=True, expand=True)
    task = progress.add_task(visible(what), total=total)
    started = time.monotonic()
    lock = threading.Lock()
    ended = False

    def update(**changes: Any) -> None:
        progress.update(task, **changes)
        with lock:
            if not ended and time.monotonic() - started >= quiet:
                progress.start()

    try:
        yield update
    finally:
        with lock:
            ended = True
        progress.stop()
