"""The progress line on stderr: the part that is done, the rate, the time elapsed and left. Silent without a terminal.

The line appears after half a second, even if nothing has been reported yet, because imports, compilers and the weights
of a model take seconds. So quick commands stay quiet, and no other is silent for long. The line vanishes at the end.
Readers report from their decoding thread, which may run for a moment after the work has stopped. Reports after the end
do not bring the line back. While a line is open inside of another, only the inner line is shown.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pilekit.errors import visible

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

QUIET_SECONDS = 0.5
NARROW = 72
"""A terminal of fewer columns has no room for all parts of a line, so some are left out."""

Advance = Callable[[int], None]
"""Called with each further number of (stored, compressed) bytes that are done, from any thread."""

Report = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes done since the last call, and the step's total bytes; from any thread."""

Reached = Callable[[int, int], None]
"""Called with the number done and the total."""

Scored = Callable[[int, int | None, float | None], None]
"""Called with the bytes done, their total (None: unknown), and the bits per byte so far (None: no byte is scored)."""


@contextmanager
def byte_progress(activity: str, total: int | None, quiet: float = QUIET_SECONDS) -> Iterator[Advance]:
    """Show how many of `total` bytes are done. Yields the function to call with each further number of bytes.

    activity   the title of the line, such as `counting`
    total      None (a pipe, a server that gives no size): the line shows bytes, rate and the time so far
    quiet      the seconds after which the line appears
    """
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    columns = (DownloadColumn(), TransferSpeedColumn(), *_clock(with_remaining=total is not None))
    with _line(activity, total, quiet, *columns) as update:
        yield lambda amount: update(advance=amount)


@contextmanager
def step_progress(quiet: float = QUIET_SECONDS) -> Iterator[Report]:
    """Show a line of bytes for each step of a job, one line at a time."""
    lock = threading.Lock()
    lines: dict[str, Advance] = {}
    with ExitStack() as shown:
        shown.enter_context(waiting("starting", quiet))

        def advance(step: str, amount: int, total: int) -> None:
            with lock:
                if step not in lines:
                    shown.close()
                    lines[step] = shown.enter_context(byte_progress(step, total, quiet))
            lines[step](amount)

        yield advance


@contextmanager
def count_progress(activity: str, quiet: float = QUIET_SECONDS) -> Iterator[Reached]:
    """Show the number done and the total. Yields the function to call with both, as often as you like."""
    if not sys.stderr.isatty():
        yield lambda count, total: None
        return
    from rich.progress import MofNCompleteColumn

    shown = time.monotonic()

    def reached(count: int, total: int) -> None:
        nonlocal shown
        # Ten times a second: an update of rich takes longer than many small steps.
        if (now := time.monotonic()) >= shown + 0.1:
            shown = now
            update(completed=count, total=total)

    with _line(activity, None, quiet, MofNCompleteColumn(), *_clock()) as update:
        yield reached


@contextmanager
def score_progress(activity: str, figure: str | None, quiet: float = QUIET_SECONDS) -> Iterator[Scored]:
    """Show how many bytes are done, of how many, and the figure so far, as in `0.9123 bits per byte so far`.

    figure   the name of the figure; None: no figure is shown
    """
    if not sys.stderr.isatty():
        yield lambda size, total, bits: None
        return
    from rich.progress import DownloadColumn

    unit = "" if _is_narrow() else f" {figure}"

    def scored(size: int, total: int | None, bits: float | None) -> None:
        title = activity if figure is None or bits is None else f"{activity}: {bits:.4f}{unit}"
        update(completed=size, total=total, description=visible(title))

    with _line(activity, None, quiet, DownloadColumn(), *_clock()[-2:]) as update:
        yield scored


@contextmanager
def waiting(activity: str, quiet: float = 0.0) -> Iterator[None]:
    """Show, at once or after `quiet` seconds, that work without progress reports is running, such as an import."""
    if not sys.stderr.isatty():
        yield
        return
    with _line(activity, None, quiet, *_clock(with_remaining=False)):
        yield


def _clock(*, with_remaining: bool = True) -> list[ProgressColumn]:
    """`0:00:12 elapsed, 0:01:20 left`. On a narrow terminal only the time left is shown."""
    from rich.progress import TextColumn, TimeElapsedColumn, TimeRemainingColumn

    if not with_remaining:
        return [TimeElapsedColumn(), TextColumn("elapsed")]
    elapsed = [] if _is_narrow() else [TimeElapsedColumn(), TextColumn("elapsed,")]
    return [*elapsed, TimeRemainingColumn(), TextColumn("left")]


def _is_narrow() -> bool:
    return shutil.get_terminal_size().columns < NARROW


_open: list[Callable[[bool], None]] = []
"""Shows or hides each line that is open, the innermost last."""


@contextmanager
def _line(activity: str, total: int | None, quiet: float, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A line of rich, shown after `quiet` seconds. Yields its update function."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    text = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True, soft_wrap=True)  # Standard error itself breaks the messages above the line.
    progress = Progress(text, BarColumn(bar_width=None), *columns, console=console, transient=True, expand=True)
    task = progress.add_task(visible(activity), total=total)
    lock = threading.Lock()
    is_due = is_hidden = False

    def show() -> None:
        nonlocal is_due
        with lock:
            is_due = True
            if not is_hidden:
                progress.start()

    def hide(hidden: bool) -> None:
        nonlocal is_hidden
        with lock:
            is_hidden = hidden
            if hidden:
                progress.stop()
            elif is_due:
                progress.start()

    timer = threading.Timer(quiet, show)
    timer.daemon = True
    for outer in _open[-1:]:
        outer(True)
    _open.append(hide)
    try:
        if quiet:
            timer.start()
        else:
            show()
        yield partial(progress.update, task)
    finally:
        timer.cancel()
        hide(True)
        _open.remove(hide)
        for outer in _open[-1:]:
            outer(False)
