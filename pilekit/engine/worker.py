"""A worker process of the local engine: takes one item after the other through a pipe, sends back what became of it.

Each worker has a pipe of its own and shares no lock with anyone, so a worker that is killed in the middle of anything
(the kernel's out-of-memory killer does that) cannot leave the others or the parent waiting.

SIGTERM, by which the parent stops a worker, is an exception in its main thread, so that what it was at clears up after
itself: no half-written file stays. Then it dies of the signal, as it would have.

Messages to the worker: (function, item), pickled together. Messages from the worker: `Ready`, `Progress`, `Done`,
`Failed`, as the small tuples below.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, NoReturn

PROGRESS_SECONDS = 0.1
"""Progress is gathered for this long: a message per few megabytes would cost more than it tells."""


class Message(NamedTuple):
    """What a worker says; `value` is None, further bytes, the result, or the exception."""

    kind: Literal["ready", "progress", "done", "failed"]
    value: Any = None


class _Sender:
    """Sends messages; safe to call from any thread, because readers report progress from their decoding thread."""

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
            self.pipe.send_bytes(pickle.dumps(Message("progress", self.unsent)))
        self.unsent, self.last = 0, time.monotonic()


def work(pipe: Connection, environment: dict[str, str]) -> None:
    """The worker's main function: ends when the parent closes its end of the pipe.

    environment   the parent's of today; the server that forked this process has the environment of its own start
    """
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends Ctrl-C to all; stopping is the parent's to do.
    signal.signal(signal.SIGTERM, _leave)
    try:
        _serve(pipe)
    except SystemExit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A second one would break off the clearing up.
    sys.exit()


def _serve(pipe: Connection) -> None:
    """Work on what comes through the pipe."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sender = _Sender(pipe)
    sender.finish(pickle.dumps(Message("ready")))
    while True:
        try:
            payload = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, item = pickle.loads(payload)
            message = pickle.dumps(Message("done", function(item, sender.advance)))
        except Exception as error:
            message = pickle.dumps(Message("failed", _portable(error)))
        try:
            sender.finish(message)
        except OSError:
            return
        del message


def _die_with_parent() -> None:
    """A parent that is killed cannot stop its workers: they notice by themselves."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """`error` with its traceback as a note; as a RuntimeError if the exception itself does not survive pickling."""
    where = "".join(traceback.format_exception(error))
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in the worker process:\n{where}")
    return copy
