"""The code that runs on the nodes of a Ray cluster: the check of a node, the work on an item, progress.

A worker process checks its node before its first item. So a node that does not share the driver's folders, or would
write other bytes, is refused before it writes anything. The result, or the failure, and the warnings return to the
driver together, because nobody sees a worker's stderr.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import pickle
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import BufferingHandler
from multiprocessing import current_process
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from pilekit.errors import PilekitError, message_logger
from pilekit.version import __version__
from pilekit.workers.cluster import Advance
from pilekit.workers.worker import picklable

Task = tuple[int, int]
"""The number of a call of `imap_shards`, and that of the task's first item."""

PROGRESS_SECONDS = 0.5
LATE_SECONDS = 90.0
"""A shared file system may show a new file this late; NFS takes up to 60 seconds."""
SHARE = "put it, or $PILEKIT_CACHE if it lies there, on a file system that all nodes share and can write"


class Driver(NamedTuple):
    """The driver's folder, versions and $PILEKIT_ variables, and the lock that it holds in the output folder."""

    folder: str
    versions: dict[str, str]
    settings: dict[str, str]
    lock: Path | None


class Report(NamedTuple):
    """A task's report to the driver; `outcomes`: for each item, the pickled result, or the exception."""

    node: str
    outcomes: list[bytes | Exception]
    done_bytes: int
    warnings: list[tuple[str, int, str]]


class Progress:
    """An actor that holds each task's total of stored bytes done; a task that is repeated counts once."""

    def __init__(self) -> None:
        self._news: dict[Task, int] = {}

    async def record(self, task: Task, done_bytes: int) -> None:
        """Record a task's total of bytes done."""
        self._news[task] = done_bytes

    async def news(self) -> dict[Task, int]:
        """Wait for half a second, and return the changes since the last call."""
        import asyncio  # 30 modules, which no other command needs

        await asyncio.sleep(PROGRESS_SECONDS)
        news, self._news = self._news, {}
        return news


def scratch_folder(scratch: Path | None) -> Path:
    """The folder for unnamed files on this node's own disk."""
    return scratch or Path(tempfile.gettempdir())


def versions() -> dict[str, str]:
    """The versions that must be the same on all nodes, because the output's bytes depend on them."""
    from importlib.metadata import version  # takes 20 ms

    python, libzstd = platform.python_version_tuple()[:2], map(str, zstandard.ZSTD_VERSION)
    package_versions = {name: version(name) for name in ("pyarrow", "tokenizers", "fastokens")}
    return {"pilekit": __version__, "Python": ".".join(python), "libzstd": ".".join(libzstd), **package_versions}


def run_task(driver: Driver, function: bytes, items: list[bytes], task: Task, progress: Any) -> Report:
    """Work on the items in order; a failed item does not stop the others. `PilekitError` if the node is unfit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray cancels with SIGINT; a shell's `&` ignores it.
    node = f"node {importlib.import_module('ray').util.get_node_ip_address()}"
    lock, done_bytes, last_report = threading.Lock(), 0, 0.0
    warned = BufferingHandler(1 << 20)
    warned.setLevel(logging.WARNING)

    def advance(amount: int) -> None:
        nonlocal done_bytes, last_report
        with lock:
            done_bytes += amount
            if (now := time.monotonic()) >= last_report + PROGRESS_SECONDS:
                last_report = now
                with suppress(Exception):  # The collector may be dead; the work continues.
                    progress.record.remote(task, done_bytes)

    logging.getLogger("pilekit").addHandler(warned)
    try:
        check_node(driver, node)
        outcomes = [_outcome(function, item, advance) for item in items]
    finally:
        logging.getLogger("pilekit").removeHandler(warned)
    warnings = [(record.name, record.levelno, record.getMessage()) for record in warned.buffer]
    return Report(node, outcomes, done_bytes, warnings)


def _outcome(function: bytes, item: bytes, advance: Advance) -> bytes | Exception:
    try:
        return pickle.dumps(pickle.loads(function)(pickle.loads(item), advance))
    except Exception as error:
        return picklable(error)


_checked: list[Driver] = []
"""The last driver for which this process has checked its node."""


def check_node(driver: Driver, node: str, seconds: float = LATE_SECONDS) -> None:
    """Work as the driver does; `PilekitError` if this node cannot.

    node      names this node in messages
    seconds   is how long the lock may take to appear
    """
    if _checked == [driver]:
        return
    current_process().daemon = True  # So that `map_shards` inside a task runs in this process.
    os.environ.update(driver.settings)
    try:
        os.chdir(driver.folder)
    except OSError as error:
        why = f"has no folder {driver.folder} ({error.strerror})"
        raise PilekitError(f"{node} {why}; start the command in a folder that all nodes share") from error
    for name, here in versions().items():
        if here != (there := driver.versions[name]):
            why = f"has {name} {here}, the driver has {there}"
            raise PilekitError(f"{node} {why}; install the same versions on all nodes")
    if driver.lock is not None:
        if not wait_for_file(driver.lock.exists, driver.lock.parent, seconds):
            raise PilekitError(f"{node} does not see the driver's folder {driver.lock.parent}; {SHARE}")
        _try_lock(driver.lock)
    _checked[:] = [driver]


def _try_lock(lock: Path) -> None:
    """Try to take the driver's lock, which should fail."""
    try:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:  # no locks
        pass
    text = "%s: locks do not reach other machines; run no second command that writes there"
    message_logger(__name__).warning(text, lock.parent)


def wait_for_file(is_there: Callable[[], bool], folder: Path, seconds: float = LATE_SECONDS) -> bool:
    """Whether `is_there` comes true; waits as long as a shared file system may take to show a file in `folder`."""
    end = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > end:
            return False
        for listed in (folder.parent, folder):  # NFS looks again when a folder is listed.
            with suppress(OSError):
                os.listdir(listed)  # noqa: PTH208
        time.sleep(1)
    return True
