"""Work on many shards in local processes: `map_shards(function, shards)`.

    results = map_shards(count_shard, corpus.shards)        # def count_shard(shard, advance): ...

Each worker process takes one item at a time (see worker.py). The parent waits on the workers' pipes, hands out items,
and yields results in the order of the items. At most two items per job are under way or waiting to be yielded, so
memory stays bounded if the consumer or an early item is slow.

Forking a process that has threads (decoding, rich, torch) can deadlock. On Linux, a process without threads of Python
and without torch forks its workers itself, which costs no import. (The threads of NumPy's BLAS and of Arrow are safe:
both libraries restart them in the child.) Any other process starts a server process. It imports the function's module
once, in about 0.4 CPU seconds, and forks the workers of all calls. On other systems workers are spawned, which takes
about a CPU second each.

- A failed item does not stop the others, whose work may be files on disk. At the end, the first failure in the order of
  the items is raised.
- A worker's death is reported as the failure of its item. The other workers take the remaining items. If memory ran
  out, use fewer workers.
- Ctrl-C, an error in the consumer, and closing the iterator stop all workers at once.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, current_process, forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from pilekit.errors import PilekitError
from pilekit.workers.cluster import Advance, Cluster, raise_first
from pilekit.workers.worker import work

T = TypeVar("T")
R = TypeVar("R")

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_STOP_SECONDS = 2.0


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
    cluster: Cluster | None = None,
    lock: Path | None = None,
) -> list[R]:
    """`[function(item, advance) for item in items]`, on several processes.

    function      can be pickled; it calls its second argument with each further number of stored bytes done
    jobs          limits the processes, by default to the usable CPUs; 1 runs all in this process
    names         stand for the items in errors; by default their `name` or `str`
    on_progress   receives the numbers that the functions report
    cluster       does the work instead of local processes
    lock          is the locked file of the folder that the function writes into; all nodes of a cluster must see it

    After the last item, the first failure is raised, with the item's name in its message. It is a `PilekitError`
    for a `PilekitError`, an `OSError`, lack of memory or a dead worker, and a `RuntimeError` for anything else.
    """
    return list(
        imap_shards(function, items, jobs=jobs, names=names, on_progress=on_progress, cluster=cluster, lock=lock)
    )


def imap_shards(
    function: Callable[[T, Advance], R],
    items: Iterable[T],
    *,
    jobs: int | None = None,
    names: Sequence[str] | None = None,
    on_progress: Advance | None = None,
    cluster: Cluster | None = None,
    lock: Path | None = None,
    memory: int = 0,
) -> Generator[R, None, None]:
    """Like `map_shards`, but yields each result as soon as it and all earlier results are ready.

    memory   is what a task of a cluster needs in addition to reading a shard, in bytes

    At most two results per job are held. Nothing is yielded after a failed item. The failure is raised at the end.
    """
    items = list(items)
    labels = [str(getattr(item, "name", item)) for item in items] if names is None else list(names)
    if len(labels) != len(items):
        raise PilekitError(f"{len(items)} items, but {len(labels)} names for them")
    if jobs is not None and jobs < 1:
        raise PilekitError(f"jobs must be at least 1, not {jobs}")
    cpus = usable_cpus() if cluster is None else max(1, sum(cluster.cpus()))
    jobs = min(cpus if jobs is None else jobs, len(items))
    report = on_progress or (lambda amount: None)
    if cluster is not None and items:
        return cluster.imap_shards(function, items, labels, jobs, report, lock, memory)
    # A daemonic process (one of our workers, or of a DataLoader) may not start processes.
    if jobs <= 1 or current_process().daemon:
        return _inline(function, items, labels, report)
    return _in_processes(function, items, labels, report, jobs)


def _inline(
    function: Callable[[T, Advance], R], items: list[T], labels: Sequence[str], on_progress: Advance
) -> Generator[R, None, None]:
    errors: dict[int, Exception] = {}
    for index, item in enumerate(items):
        try:
            result = function(item, on_progress)
        except Exception as error:
            errors[index] = error
            continue
        if not errors:
            yield result
    raise_first(errors, labels)


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    item: int | None = None


def _in_processes(
    function: Callable[[T, Advance], R], items: list[T], labels: Sequence[str], on_progress: Advance, jobs: int
) -> Generator[R, None, None]:
    payloads = [pickle.dumps((function, item)) for item in items]
    errors: dict[int, Exception] = {}
    results: dict[int, R] = {}
    begun = yielded = 0
    workers: list[_Worker] = []
    try:
        _start(workers, jobs, _module_of(function), needs_main=any(b"__main__" in payload for payload in payloads))
        while workers and yielded < len(items):
            for worker in workers:
                if worker.item is None and begun < min(len(items), yielded + 2 * jobs):
                    worker.item, begun = begun, begun + 1
                    with suppress(OSError):  # If the worker died, reading from its pipe fails below.
                        worker.pipe.send_bytes(payloads[worker.item])
            for pipe in connection.wait([worker.pipe for worker in workers]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                try:
                    kind, value = pickle.loads(worker.pipe.recv_bytes())
                except (EOFError, OSError):
                    workers.remove(worker)
                    kind, value = "failed", _death(worker)
                if kind == "progress":
                    on_progress(value)
                    continue
                if worker.item is not None:
                    (errors if kind == "failed" else results)[worker.item] = value
                worker.item = None
            while yielded in results or yielded in errors:
                result = results.pop(yielded, None)
                yielded += 1
                if yielded <= min(errors, default=len(items)):
                    yield result  # type: ignore[misc]
        raise_first(errors, labels)
    finally:
        _stop(workers)


def _module_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return function.__module__


def _start(workers: list[_Worker], jobs: int, module: str, needs_main: bool) -> None:
    method = "fork" if may_fork() else START_METHOD
    context: Any = get_context(method)
    # Imports of other modules may start threads. A running server stays as it is.
    if method == "forkserver" and module.startswith("pilekit."):
        context.set_forkserver_preload([module])
    atexit.unregister(_stop_server)  # registered once for all calls
    atexit.register(_stop_server, os.getpid())
    if method != "fork":  # Forked workers need no tracker, which is a process of its own.
        resource_tracker.ensure_running()  # Started later, by the first child, it would unblock interrupts.
    with _starting(needs_main):
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, dict(os.environ)), daemon=True)
            process.start()
            theirs.close()
            workers.append(_Worker(process, ours))


def may_fork() -> bool:
    """Whether workers are forked from this process: it has no threads whose locks they would inherit locked.

    A child that is running the main script again may not fork: the script would do its work twice.
    """
    is_new = getattr(current_process(), "_inheriting", False)
    is_safe = threading.active_count() == 1 and "torch" not in sys.modules and not is_new
    return START_METHOD == "forkserver" and is_safe


@contextmanager
def _starting(needs_main: bool) -> Iterator[None]:
    """Start children that ignore Ctrl-C and, unless `needs_main`, do not run the main script again.

    A terminal sends Ctrl-C to all processes, but only the parent stops workers. A new process runs the main script
    again, unless the main module is empty; a script without `if __name__ == "__main__":` would start processes without
    end. Functions that are defined in a module do not need the main script.
    """
    main = sys.modules["__main__"]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if not needs_main:
            sys.modules["__main__"] = types.ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _death(worker: _Worker) -> PilekitError:
    """The failure of the item of a worker that died."""
    worker.pipe.close()
    worker.process.join(_STOP_SECONDS)
    code = worker.process.exitcode
    if code is not None and code < 0:
        how = f"was killed (signal {-code}); if memory ran out, use fewer jobs"
    else:
        how = f"ended with exit code {code}; see its message above"
        # Python's error if the main script starts processes whenever it is imported.
        how += '; in a script of your own, put the call under `if __name__ == "__main__":`' if code == 1 else ""
    return PilekitError(f"the process that worked on it {how}")


def _stop(workers: list[_Worker]) -> None:
    """Stop all workers, after a moment in which they can clean up."""
    for worker in workers:
        worker.process.terminate()
    end = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, end - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _stop_server(owner: int) -> None:
    """Stop the fork server when the process `owner` exits, and wait, so that its CPU time counts as a child's."""
    server: Any = forkserver._forkserver
    if os.getpid() == owner:  # Not in a process that was forked from `owner`.
        with suppress(Exception):
            # Closing its pipe may not be enough: a forked process may hold it open.
            os.kill(server._forkserver_pid, signal.SIGTERM)
            server._stop()
