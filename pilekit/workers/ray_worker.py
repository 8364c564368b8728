"""The code that runs on the nodes of a Ray cluster: the node check, the items of a task, and the collector of progress.

A worker process answers the node check before its first item. So a node that does not share the driver's folders, or
would write other bytes, is refused before it writes anything. Results, failures and warnings return to the driver
together, because nobody sees a worker's stderr.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import pickle
import platform
import secrets
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

from pilekit.errors import PilekitError, message_logger, visible
from pilekit.version import __version__
from pilekit.workers.worker import picklable

MOST_BYTES = 1 << 20
"""The largest pickled item or result. Larger data must go through files."""
PROGRESS_SECONDS = 0.5
LATE_SECONDS = 90.0
"""A shared file system may show a new file this late; NFS takes up to 60 seconds."""
CHECK_FILE = f".{secrets.token_hex(4)}.partial"
"""The suffix that names this process's answer beside the lock. The driver, or its next run, removes such files."""
SHARE = "put it, or $PILEKIT_CACHE if it lies there, on a file system that all nodes share and can write"


class NodeCheck(NamedTuple):
    """The driver's folder, versions, $PILEKIT_ variables, the output folder's lock, the nonce in it, and the task."""

    folder: str
    versions: dict[str, str]
    settings: dict[str, str]
    lock: str | None
    nonce: str
    task: int = -1


class Report(NamedTuple):
    """A task's report to the driver. `outcomes`: for each item, the pickled result, or the exception.

    answer   the file that its process wrote beside the lock; the driver must see it
    """

    node: str
    answer: str | None
    refused: str | None
    outcomes: list[bytes | Exception]
    done: int
    warnings: list[tuple[str, int, str]]


class Progress:
    """An actor that holds each task's node and its total of stored bytes done; totals count nothing twice."""

    def __init__(self) -> None:
        self._news: dict[int, tuple[str, int]] = {}

    def tell(self, task: int, node: str, done: int) -> None:
        """Record a task's node and its total of bytes done."""
        self._news[task] = (node, done)

    def news(self) -> dict[int, tuple[str, int]]:
        """The changes since the last call."""
        news, self._news = self._news, {}
        return news


def scratch_folder(scratch: Path | None) -> Path:
    """The folder for unnamed files on this node's own disk."""
    return scratch or Path(tempfile.gettempdir())


def versions() -> dict[str, str]:
    """The versions that must be the same on all nodes, because the output's bytes depend on them."""
    from importlib.metadata import version  # takes 20 ms

    python, libzstd = platform.python_version_tuple()[:2], map(str, zstandard.ZSTD_VERSION)
    others = {name: version(name) for name in ("pyarrow", "tokenizers", "fastokens")}
    return {"pilekit": __version__, "Python": ".".join(python), "libzstd": ".".join(libzstd), **others}


def run_task(call: NodeCheck, function: bytes, items: list[bytes], progress: Any) -> Report:
    """Answer the node check, then work on the items in order; a failed item does not stop the others."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray cancels with SIGINT; a shell's `&` ignores it.
    node = importlib.import_module("ray").get_runtime_context().get_node_id()
    outcomes: list[bytes | Exception] = []
    lock, refused, done, told = threading.Lock(), None, 0, 0.0
    warned = BufferingHandler(1 << 20)
    warned.setLevel(logging.WARNING)

    def advance(amount: int) -> None:
        nonlocal done, told
        with lock:
            done += amount
            if (now := time.monotonic()) >= told + PROGRESS_SECONDS:
                told = now
                with suppress(Exception):  # The collector may be dead; the work continues.
                    progress.tell.remote(call.task, node, done)

    advance(0)
    logging.getLogger("pilekit").addHandler(warned)
    try:
        _answer(call)
        work = pickle.loads(function)
        outcomes = [_outcome(work, item, advance) for item in items]
    except PilekitError as error:
        refused = str(error)
    finally:
        logging.getLogger("pilekit").removeHandler(warned)
    warnings = [(record.name, record.levelno, record.getMessage()) for record in warned.buffer]
    return Report(node, call.lock and call.lock + CHECK_FILE, refused, outcomes, done, warnings)


def _outcome(work: Callable[[Any, Callable[[int], None]], Any], item: bytes, advance: Any) -> bytes | Exception:
    try:
        result = pickle.dumps(work(pickle.loads(item), advance))
        if len(result) <= MOST_BYTES:
            return result
        raise PilekitError(f"its result takes {len(result):,} bytes, more than a cluster's task sends home")
    except Exception as error:
        return picklable(error)


_answered: list[NodeCheck] = []
"""The last node check that this process has answered."""


def is_superseded() -> bool:
    """Whether the job ended without this task, or resubmitted it, because its node seemed lost."""
    if not _answered or (lock := _answered[0].lock) is None:
        return False
    try:
        nonce, *lost = Path(lock).read_text().split()
    except FileNotFoundError:
        return True
    return nonce != _answered[0].nonce or str(_answered[0].task) in lost


def _answer(call: NodeCheck) -> None:
    """Raise `PilekitError` if this node cannot take part; the driver puts the node's name before the message."""
    if _answered and _answered[0].nonce == call.nonce:
        _answered[0] = call
        return
    current_process().daemon = True  # So that `map_shards` inside a task runs in this process.
    os.environ.update(call.settings)
    try:
        os.chdir(call.folder)
    except OSError as error:
        why = f"has no folder {visible(call.folder)} ({error.strerror})"
        raise PilekitError(f"{why}; start the command in a folder that all nodes share") from error
    for name, here in versions().items():
        if here != (there := call.versions[name]):
            raise PilekitError(f"has {name} {here}, the driver has {there}; install the same versions on all nodes")
    if call.lock is not None:
        _find_lock(Path(call.lock), call.nonce)
    _answered[:] = [call]


def wait_for_file(is_there: Callable[[], bool], folder: Path) -> bool:
    """Whether `is_there` comes true; waits as long as a shared file system may take to show a file in `folder`."""
    end = time.monotonic() + LATE_SECONDS
    while not is_there():
        if time.monotonic() > end:
            return False
        for listed in (folder.parent, folder):  # NFS looks again when a folder is listed.
            with suppress(OSError):
                os.listdir(listed)  # noqa: PTH208
        time.sleep(1)
    return True


def _find_lock(lock: Path, nonce: str) -> None:
    """Read the driver's nonce from its lock, write it beside the lock, and try the lock, which should fail."""
    folder = visible(lock.parent)
    if not wait_for_file(lambda: lock.exists() and lock.read_text().split()[:1] == [nonce], lock.parent):
        raise PilekitError(f"does not see the driver's folder {folder}; {SHARE}")
    try:
        Path(f"{lock}{CHECK_FILE}").write_text(nonce)
    except OSError as error:
        raise PilekitError(f"cannot write into the driver's folder {folder} ({error.strerror}); {SHARE}") from error
    try:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:
        pass
    text = "%s: locks do not reach other machines; run no second command that writes there"
    message_logger(__name__).warning(text, folder)
