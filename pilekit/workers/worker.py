"""A local worker process: takes items through a pipe, one after the other, and sends back the results.

Each worker has its own pipe and shares no lock with any other process. So a worker that is killed at any moment, for
example by the kernel's out-of-memory killer, leaves nobody waiting.

The parent stops a worker with SIGTERM. It raises SystemExit in the worker's main thread, so that the work cleans up and
leaves no half-written file. Then the worker dies of the signal.

The parent sends (function, item), pickled. The worker sends pickled pairs: ("progress", bytes done since the last one),
("done", result) and ("failed", exception).
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

PROGRESS_SECONDS = 0.1
"""Progress is collected this long, because a message for every few megabytes would cost too much."""
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""As if the worker had half of the memory more than it has."""


class _Sender:
    """Sends messages. Any thread may call it, because readers report progress from their decoding thread."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe
        self.lock = threading.Lock()
        self.unsent = 0
        self.last = time.monotonic()

    def advance(self, amount: int) -> None:
        with self.lock:
            self.unsent += amount
            if time.monotonic() - self.last >= PROGRESS_SECONDS:
                self._flush()

    def finish(self, message: bytes) -> None:
        with self.lock:
            self._flush()
            self.pipe.send_bytes(message)

    def _flush(self) -> None:
        if self.unsent:
            self.pipe.send_bytes(pickle.dumps(("progress", self.unsent)))
        self.unsent, self.last = 0, time.monotonic()


def work(pipe: Connection, environment: dict[str, str]) -> None:
    """The worker's main function. It ends when the parent closes its end of the pipe.

    environment   the parent's current environment; the server that forked this process has an older one
    """
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends Ctrl-C to all processes; only the parent stops us.
    signal.signal(signal.SIGTERM, _leave)
    end_with_parent(signal.SIGKILL)
    _offer_memory()
    gc.freeze()  # The collector would write into all that the parent made, and so copy it.
    try:
        _serve(pipe)
    except SystemExit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _offer_memory() -> None:
    """On Linux: if memory runs out, let the kernel kill a worker, which the parent reports, before a larger parent."""
    with suppress(OSError):
        score_file = Path("/proc/self/oom_score_adj")
        score_file.write_text(str(min(1000, int(score_file.read_text()) + _OOM_SCORE)))


def _leave(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A second one would interrupt the cleaning up.
    sys.exit()


def _serve(pipe: Connection) -> None:
    """Work on the items that come through the pipe."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sender = _Sender(pipe)
    while True:
        try:
            payload = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, item = pickle.loads(payload)
            message = pickle.dumps(("done", function(item, sender.advance)))
        except Exception as error:
            message = pickle.dumps(("failed", picklable(error)))
        try:
            sender.finish(message)
        except OSError:
            return
        del message


def end_with_parent(number: signal.Signals) -> None:
    """On Linux: ask the kernel for this signal to the process when its parent ends."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _die_with_parent() -> None:
    """End when the parent ends. A parent that is killed cannot stop its workers.

    The kernel does the same, also while compiled code lets no thread run, but only on Linux, and for workers of the
    server only after that has ended.
    """
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def picklable(error: Exception) -> Exception:
    """`error` with its traceback as a note, or a RuntimeError with its text if it cannot be pickled."""
    where = "".join(traceback.format_exception(error))
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in the worker process:\n{where}")
    return copy
