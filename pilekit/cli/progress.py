"""The progress line: bytes, rate and time left, on stderr, silent when stderr is not a terminal.

It appears only after two seconds, so that quick commands stay quiet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

Advance = Callable[[int], None]
"""Called with the number of further bytes (as stored, compressed) that have been dealt with."""


@contextmanager
def byte_progress(what: str, total: int | None) -> Iterator[Advance]:
    """Show how far `what` has come through `total` bytes; yields the function to call with each further amount."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task(what, total=total)
    started = time.monotonic()
    running = False

    def advance(amount: int) -> None:
        nonlocal running
        progress.update(task, advance=amount)
        if not running and time.monotonic() - started > 2:
            progress.start()
            running = True

    try:
        yield advance
    finally:
        if running:
            progress.stop()
