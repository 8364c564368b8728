"""The progress line: how much is done, rate and time left, on stderr, silent when stderr is not a terminal.

It appears only after two seconds, so that quick commands stay quiet, and vanishes when the work ends, so that nothing
of it is left between messages. Readers report from their decoding thread, which may still run for a moment after the
work was given up: what it reports then must not bring the line back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pilekit.errors import visible

QUIET_SECONDS = 2.0

Advance = Callable[[int], None]
"""Called with the number of further bytes (as stored, compressed) that have been dealt with; from any thread."""

Reached = Callable[[int, int], None]
"""Called with how many are done, and how many are to be done in all."""


@contextmanager
def byte_progress(what: str, total: int | None) -> Iterator[Advance]:
    """Show how far `what` has come through `total` bytes; yields the function to call with each further amount.

    With `total` None (a pipe, a server that does not say) there are bytes, rate and the time it has taken so far.
    """
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console  # here, as most processes that could show a line show none
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    time_column: ProgressColumn = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        time_column,
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )
    task = progress.add_task(visible(what), total=total)
    started = time.monotonic()
    lock = threading.Lock()
    shown = ended = False

    def advance(amount: int) -> None:
        nonlocal shown
        progress.update(task, advance=amount)
        with lock:
            if not shown and not ended and time.monotonic() - started >= QUIET_SECONDS:
                progress.start()
                shown = True

    try:
        yield advance
    finally:
        with lock:
            ended = True
        if shown:
            progress.stop()


@contextmanager
def count_progress(what: str) -> Iterator[Reached]:
    """Show how many of how many are done; yields the function to call with both numbers, as often as one likes."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn())
    progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = progress.add_task(visible(what), total=None)
    told = started = time.monotonic()

    def reached(done: int, total: int) -> None:
        nonlocal told
        # Ten times a second: telling rich of each small step would take longer than making it.
        if (now := time.monotonic()) >= told + 0.1:
            told = now
            progress.update(task, completed=done, total=total)
            if now >= started + QUIET_SECONDS:
                progress.start()

    try:
        yield reached
    finally:
        progress.stop()
