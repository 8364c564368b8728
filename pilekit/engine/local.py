"""Work on many shards in local processes: `map_shards(function, shards)`.

    results = map_shards(count_shard, corpus.shards)        # def count_shard(shard, advance): ...

One worker process per job takes one item at a time. The parent only waits on their pipes (see worker.py), hands out
items, and yields results in the order of the items. It hands out an item only while fewer than two per job are under
way or waiting to be yielded, so memory stays bounded however slow the consumer or an early item is.

Workers are not forked from this process: forking a process that has threads (decoding, rich, torch) can deadlock. On
Linux a server process imports the function's module once, and forks the workers of all calls: they start in
milliseconds, where a spawned process takes most of a CPU second. Elsewhere workers are spawned.

- An item that fails does not stop the others: their work may be an artefact on disk. When all are through, the first
  failure, in the order of the items, is raised.
- A worker that dies is reported as the failure of its item; the remaining workers go on, fewer at a time, which is the
  right answer to memory running out.
- On Ctrl-C, on any error in the consumer and when the iterator is closed, workers are stopped at once.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import re
import signal
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, current_process, forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from pilekit.engine.worker import Message, work
from pilekit.errors import PilekitError, visible

Advance = Callable[[int], None]
"""Called with the number of further stored bytes that have been dealt with; from any thread."""

T = TypeVar("T")
R = TypeVar("R")

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_STOP_SECONDS = 2.0
_NOT_STARTED = (
    "the worker processes did not start (see their messages above); in a script of your own, put the call under "
    '`if __name__ == "__main__":`'
)


def usable_cpus() -> int:
    """The number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_shards(
    function: Callable[[T, Advance], R],
    items: Iterable[T],
    *,
    jobs: int | None = None,
    names: Sequence[str] | None = None,
    on_progress: Advance | None = None,
) -> list[R]:
    """`[function(item, advance) for item in items]`, on several processes.

    function      a picklable function; it calls its second argument with each further amount of stored bytes done
    jobs          how many processes; None: the usable CPUs. Never more than items; with one, all runs in this process
    names         what to call the items in errors; their `name` or `str` where not given
    on_progress   receives the amounts that the functions report

    Raises the first failure, in the order of the items, when all others are through, with the item's name in its
    message: a `PilekitError` for one, an `OSError`, want of memory and a dead worker, a `RuntimeError` for all else.
    """
    return list(imap_shards(function, items, jobs=jobs, names=names, on_progress=on_progress))


def imap_shards(
    function: Callable[[T, Advance], R],
    items: Iterable[T],
    *,
    jobs: int | None = None,
    names: Sequence[str] | None = None,
    on_progress: Advance | None = None,
) -> Iterator[R]:
    """Like `map_shards`, but yields each result, in the order of the items, as soon as it is its turn.

    At most two results per job are held. After a failed item nothing more is yielded; the failure comes at the end.
    """
    items = list(items)
    labels = [str(getattr(item, "name", item)) for item in items] if names is None else list(names)
    if len(labels) != len(items):
        raise PilekitError(f"{len(items)} items, but {len(labels)} names for them")
    if jobs is not None and jobs < 1:
        raise PilekitError(f"jobs must be at least 1, not {jobs}")
    jobs = min(usable_cpus() if jobs is None else jobs, len(items))
    on_progress = on_progress or _ignore
    # A daemonic process (a worker of ours, or of a DataLoader) may not start processes of its own.
    if jobs <= 1 or current_process().daemon:
        return _inline(function, items, labels, on_progress)
    return _in_processes(function, items, labels, on_progress, jobs)


def _ignore(amount: int) -> None:
    pass


class _Failures:
    """The failures so far; the first by the order of items is the one to raise."""

    def __init__(self, labels: Sequence[str]):
        self.labels = labels
        self.errors: dict[int, Exception] = {}

    def raise_first(self) -> None:
        if not self.errors:
            return
        first = min(self.errors)
        error = self.errors[first]
        label = visible(self.labels[first])
        others = [visible(self.labels[index]) for index in sorted(self.errors) if index != first]
        hidden = f" and {len(others) - 5} more" if len(others) > 5 else ""
        more = f" (also failed: {', '.join(others[:5])}{hidden})" if others else ""
        if isinstance(error, PilekitError | OSError | MemoryError):
            text = "ran out of memory; use fewer jobs" if isinstance(error, MemoryError) else str(error)
            named = re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text)
            raise PilekitError(f"{text if named else f'{label}: {text}'}{more}") from error
        raise RuntimeError(f"{label}: {type(error).__name__}: {error}{more}") from error


def _inline(
    function: Callable[[T, Advance], R], items: list[T], labels: Sequence[str], on_progress: Advance
) -> Iterator[R]:
    failures = _Failures(labels)
    for index, item in enumerate(items):
        try:
            result = function(item, on_progress)
        except Exception as error:
            failures.errors[index] = error
            continue
        if not failures.errors:
            yield result
    failures.raise_first()


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    started: bool = False
    item: int | None = None


def _in_processes(
    function: Callable[[T, Advance], R], items: list[T], labels: Sequence[str], on_progress: Advance, jobs: int
) -> Iterator[R]:
    payloads = [pickle.dumps((function, item)) for item in items]
    failures = _Failures(labels)
    results: dict[int, R] = {}
    given = yielded = 0
    workers: list[_Worker] = []
    try:
        _start(workers, jobs, _module_of(function), needs_main=any(b"__main__" in payload for payload in payloads))
        while yielded < len(items):
            while yielded in results or yielded in failures.errors:
                if yielded < min(failures.errors, default=len(items)):
                    yield results[yielded]
                results.pop(yielded, None)
                yielded += 1
            for worker in workers:
                if worker.started and worker.item is None and given < min(len(items), yielded + 2 * jobs):
                    worker.item, given = given, given + 1
                    # A worker that has died meanwhile is found by reading from its pipe.
                    _send(worker.pipe, payloads[worker.item])
            if yielded == len(items):
                break
            if not workers:
                if not failures.errors:
                    failures.errors[given] = PilekitError(_NOT_STARTED)
                break
            for ready in connection.wait([worker.pipe for worker in workers]):
                worker = next(worker for worker in workers if worker.pipe is ready)
                message = _receive(worker)
                if message is None:
                    workers.remove(worker)
                    death = _death(worker)
                    if worker.item is not None:
                        failures.errors[worker.item] = death
                elif message.kind == "progress":
                    on_progress(message.value)
                elif message.kind == "ready":
                    worker.started = True
                else:
                    assert worker.item is not None
                    if message.kind == "failed":
                        failures.errors[worker.item] = message.value
                    else:
                        results[worker.item] = message.value
                    worker.item = None
        failures.raise_first()
    finally:
        _stop(workers)


def _module_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return function.__module__


def _start(workers: list[_Worker], jobs: int, module: str, needs_main: bool) -> None:
    context: Any = get_context(START_METHOD)
    if module.startswith("pilekit."):  # Imports of others may start threads. A server that runs already stays as it is.
        context.set_forkserver_preload([module])
    atexit.unregister(_stop_server)  # once, however many calls there are
    atexit.register(_stop_server, os.getpid())
    resource_tracker.ensure_running()  # Started later, by the first child, it would lift the block on interrupts.
    with _no_interrupts(), _as_main(None if needs_main else types.ModuleType("__main__")):
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, dict(os.environ)), daemon=True)
            process.start()
            theirs.close()
            workers.append(_Worker(process, ours))


def _stop_server(owner: int) -> None:
    """At the end of the process: no server is left, and its CPU time counts as that of a child."""
    server: Any = forkserver._forkserver
    if os.getpid() == owner:  # not a process that was forked from it
        with suppress(Exception):
            # Its pipe alone may not end it: a forked process may hold that open.
            os.kill(server._forkserver_pid, signal.SIGTERM)
            server._stop()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Children started here never see Ctrl-C: a terminal sends it to all processes, and stopping is the parent's."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _as_main(module: types.ModuleType | None) -> Iterator[None]:
    """Let `module` stand for the main module while children are started.

    A spawned process runs the parent's main script again, which no function that lives in a module needs, and which
    turns a script without `if __name__ == "__main__":` into a bomb. With an empty main module it is left alone.
    """
    main = sys.modules["__main__"]
    if module is not None:
        sys.modules["__main__"] = module
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _send(pipe: Connection, payload: bytes) -> None:
    with suppress(OSError):
        pipe.send_bytes(payload)


def _receive(worker: _Worker) -> Message | None:
    """The worker's next message; None if it has died."""
    try:
        payload = worker.pipe.recv_bytes()
    except (EOFError, OSError):
        return None
    message: Any = pickle.loads(payload)
    return Message(*message)


def _death(worker: _Worker) -> PilekitError:
    worker.pipe.close()
    worker.process.join(_STOP_SECONDS)
    code = worker.process.exitcode
    if code is not None and code < 0:
        how = f"was killed (signal {-code})"
        remedy = "if memory ran out, use fewer jobs"
    else:
        how, remedy = f"ended with exit code {code}", "see its message above"
    return PilekitError(f"the process that worked on it {how}; {remedy}")


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.item is None and worker.started:
            worker.pipe.close()  # Idle: it leaves by itself.
        else:
            worker.process.terminate()  # It clears up after itself, if that takes no longer than this.
    end = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, end - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()
