"""The progress line on stderr: the part that is done, the rate and the time left. It is silent without a terminal.

It appears after two seconds, so that quick commands stay quiet, and vanishes at the end. Readers report from their
decoding thread, which may run for a moment after the work has stopped. Reports after the end do not bring the line
back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pilekit.errors import visible

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

QUIET_SECONDS = 2.0

Advance = Callable[[int], None]
"""Called with each further number of (stored, compressed) bytes that are done, from any thread."""

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
    from rich.progress import DownloadColumn, TimeElapsedColumn, TimeRemainingColumn, TransferSpeedColumn

    clock = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    with _line(what, total, DownloadColumn(), TransferSpeedColumn(), clock) as update:
        yield lambda amount: update(advance=amount)


@contextmanager
def count_progress(what: str) -> Iterator[Reached]:
    """Show the number done and the total. Yields the function to call with both, as often as you like."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    shown = time.monotonic()

    def reached(done: int, total: int) -> None:
        nonlocal shown
        # Ten times a second: an update of rich takes longer than many small steps.
        if (now := time.monotonic()) >= shown + 0.1:
            shown = now
            update(completed=done, total=total)

    with _line(what, None, MofNCompleteColumn(), TimeRemainingColumn()) as update:
        yield reached


@contextmanager
def _line(what: str, total: int | None, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
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
            if not ended and time.monotonic() - started >= QUIET_SECONDS:
                progress.start()

    try:
        yield update
    finally:
        with lock:
            ended = True
        progress.stop()
