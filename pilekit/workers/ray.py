"""Work on many shards on a Ray cluster: `with Ray("10.0.0.7:6379") as ray: corpus_stats("pile/", cluster=ray)`.

Files on shared storage hold the data, Ray schedules the tasks, and ray_worker.py runs on the nodes. The contract is
that of local processes: results in order, at most two items per job held, the first failure at the end. In addition:

- A task gives the same result and the same files whenever it runs, and a file appears when it is complete. So Ray
  repeats a task whose node or worker process was lost, up to three times, and it does no harm that a lost task may
  still end.
- The end of a call cancels its tasks, so that they remove their partial files, and kills those that do not stop.
- By default, Ray repeats a task without end if memory runs out, starts a cluster if it finds none, waits minutes at a
  wrong address, writes the errors of its nodes to standard output, and ends at SIGTERM with a stack trace. This module
  prevents all of that.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, counted, shortened
from pilekit.workers.cluster import Advance, raise_first
from pilekit.workers.ray_worker import Driver, Progress, Report, run_task, versions

T = TypeVar("T")
R = TypeVar("R")

TASK_BYTES, TASK_ITEMS = 256 << 20, 16
"""The most stored bytes, and the most shards, of a task of several small shards."""
MEMORY, MEMORY_PER_THREAD = 300 << 20, 100 << 20
PROBE_SECONDS, STOP_SECONDS = 8.0, 2.0
SETTINGS = {"NUM_REDIS_GET_RETRIES": "2", "py_gcs_connect_timeout_s": "3", "task_oom_retries": "3"}
"""Settings that Ray reads from $RAY_... when it is imported. With the first two, it gives up on wrong answers after
half a minute."""


class Ray(NearestNames):
    """A running Ray cluster; pilekit never starts one. Passed as `cluster`, it does the work on the shards.

    address   HOST:PORT of its head; None: $RAY_ADDRESS; "auto": that, or else the cluster that this machine belongs to,
              whoever started it
    scratch   a folder on each node's own disk, for temporary files; None: the node's $TMPDIR

    This machine must be one of its nodes. All nodes must see the same files under the same names.
    """

    def __init__(self, address: str | None = None, *, scratch: str | Path | None = None):
        self.address, self.scratch = address, None if scratch is None else Path(scratch)

    def __enter__(self) -> Ray:
        address = _checked(self.address)
        for name, value in SETTINGS.items():
            os.environ.setdefault(f"RAY_{name}", value)
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise PilekitError("a Ray cluster needs the package ray: pip install 'pilekit[ray]'") from error
        with ExitStack() as stack:
            worker: Any = importlib.import_module("ray._private.worker")
            stack.callback(setattr, worker, "print_worker_logs", worker.print_worker_logs)
            worker.print_worker_logs = lambda *_: None  # It prints the errors of nodes on standard output.
            on_sigterm = signal.getsignal(signal.SIGTERM)
            try:
                with _without_stderr():
                    self.ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
            except Exception as error:
                why = shortened(" ".join(str(error).split()), 300)
                raise PilekitError(
                    f"{address}: cannot join this Ray cluster ({why}); run on one of its nodes, with its "
                    "versions of Ray and Python, and with its token if it has one (RAY_AUTH_MODE=token)"
                ) from error
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, on_sigterm)
            stack.callback(self.ray.shutdown)
            here = self.ray.get_runtime_context()
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            on_this_node = strategies.NodeAffinitySchedulingStrategy(here.get_node_id(), soft=False)
            self.progress = self.ray.remote(num_cpus=0, scheduling_strategy=on_this_node)(Progress).remote()
            self.address, self._calls, self._open = here.gcs_address, count(), stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def __str__(self) -> str:
        release = ".".join(self.ray.__version__.split(".")[:2])
        cpus = self.cpus()
        return f"Ray {release} at {self.address}: {counted(len(cpus), 'node')}, {counted(sum(cpus), 'CPU')}"

    def _resources(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def cpus(self) -> list[int]:
        """The CPUs of each node."""
        return [int(resources.get("CPU", 0)) for resources in self._resources()]

    def threads(self, jobs: int) -> int:
        """The most threads that each of `jobs` tasks can have if all run at the same time; at least 1."""
        cpus = self.cpus()
        fitting = (size for size in range(max(cpus), 0, -1) if sum(n // size for n in cpus) >= jobs)
        return next(fitting, 1)

    def tasks_of_a_node(self, jobs: int) -> int:
        """The most of `jobs` tasks that run on a node at the same time; at least 1."""
        return max(1, min(jobs, max(self.cpus()) // self.threads(jobs)))

    def imap_shards(
        self,
        function: Callable[[T, Advance], R],
        items: list[T],
        labels: Sequence[str],
        jobs: int,
        on_progress: Advance,
        lock: Path | None,
        memory: int = 0,
    ) -> Generator[R, None, None]:
        """`pilekit.workers.imap_shards` on the cluster; a task needs `memory` bytes more than reading a shard takes."""
        ray, call, threads = self.ray, next(self._calls), self.threads(jobs)
        settings = {name: value for name, value in os.environ.items() if name.startswith("PILEKIT_")}
        driver = Driver(os.getcwd(), versions(), settings, lock)  # noqa: PTH109
        least = int(min(resources["memory"] for resources in self._resources()))
        memory = min(least, memory + MEMORY + threads * MEMORY_PER_THREAD)
        remote = ray.remote(num_cpus=threads, memory=memory, scheduling_strategy="SPREAD")(run_task)
        work, news = ray.put(ray.cloudpickle.dumps(function)), [self.progress.news.remote()]
        waiting, running = deque(task_items(items, jobs)), dict[Any, list[int]]()
        window = 2 * jobs * max(map(len, waiting))
        results, errors, places = dict[int, bytes](), dict[int, Exception](), dict[int, str]()
        done_bytes, shown, warned, yielded = dict[int, int](), 0, set[str](), 0
        try:
            while yielded < len(items):
                while waiting and len(running) < jobs and waiting[0][0] < yielded + window:
                    numbers = waiting.popleft()
                    payloads = [ray.cloudpickle.dumps(items[number]) for number in numbers]
                    running[remote.remote(driver, work, payloads, (call, numbers[0]), self.progress)] = numbers
                (ready,), _ = ray.wait([*running, *news])
                if ready in running:
                    numbers = running.pop(ready)
                    report = self._report(ready)
                    done_bytes[numbers[0]] = report.done_bytes
                    if len(report.outcomes) < len(numbers):  # Only one of them may have killed the processes.
                        waiting.extendleft([number] for number in reversed(numbers))
                        continue
                    for number, outcome in zip(numbers, report.outcomes, strict=True):
                        if isinstance(outcome, bytes):
                            results[number] = outcome
                        else:
                            errors[number], places[number] = outcome, report.node
                    for name, level, text in report.warnings:
                        if text not in warned:
                            warned.add(text)
                            logging.getLogger(name).log(level, "%s", text)
                else:
                    news = []
                    with suppress(ray.exceptions.RayError):  # Without the collector, only the progress stands still.
                        totals, tasks = ray.get(ready), {(call, numbers[0]) for numbers in running.values()}
                        done_bytes |= {task[1]: total for task, total in totals.items() if task in tasks}
                        news = [self.progress.news.remote()]
                if (total := sum(done_bytes.values())) != shown:
                    on_progress(total - shown)  # negative when a task is repeated
                    shown = total
                while yielded in results or yielded in errors:
                    result = results.pop(yielded, None)
                    yielded += 1
                    if result is not None and yielded <= min(errors, default=len(items)):
                        yield pickle.loads(result)
            raise_first(errors, labels, places)
        finally:
            self._stop(list(running))

    def _report(self, ref: Any) -> Report:
        """A task's report, or one failure if it gave none; raises `PilekitError` if its node cannot take part."""
        errors = self.ray.exceptions
        try:
            report: Report = self.ray.get(ref)
            return report
        except errors.OutOfMemoryError:
            failure = PilekitError("ran out of memory; use fewer jobs")
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError):
            why = "the process that worked on it was killed, or its node lost, each time"
            failure = PilekitError(f"{why}; if memory ran out, use fewer jobs")
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, PilekitError):
                raise PilekitError(str(cause)) from error
            why = shortened(str(error).strip().rpartition("\n")[2], 300)
            raise PilekitError(f"a node: {why}; install the same pilekit on all nodes") from error
        return Report("", [failure], 0, [])

    def _stop(self, refs: list[Any]) -> None:
        """Cancel running tasks, and kill those that have not ended after two seconds."""
        for force in (False, True):
            for ref in refs:
                with suppress(Exception):
                    self.ray.cancel(ref, force=force)
            if refs and not force:
                refs = self.ray.wait(refs, num_returns=len(refs), timeout=STOP_SECONDS)[1]


def task_items(items: Sequence[Any], jobs: int) -> list[list[int]]:
    """The item numbers of each task, in order; eight tasks per job if possible, so that jobs end together."""
    # An item is a shard, or a tuple that begins with one.
    sizes = [getattr(item[0] if isinstance(item, tuple) else item, "size", None) or TASK_BYTES for item in items]
    most = min(TASK_BYTES, sum(sizes) // (8 * jobs))
    tasks: list[list[int]] = []
    task_bytes = 0
    for number, size in enumerate(sizes):
        if not tasks or task_bytes + size > most or len(tasks[-1]) == TASK_ITEMS:
            tasks.append([])
            task_bytes = 0
        tasks[-1].append(number)
        task_bytes += size
    return tasks


def _checked(address: str | None) -> str:
    """The address, if something listens there."""
    named = os.environ.get("RAY_ADDRESS") or ""
    chosen = (named or "auto") if address == "auto" else address or named
    shown = shortened(chosen or "no address", 100)
    if address == chosen == "auto":
        return chosen
    if chosen.startswith("ray://"):
        raise PilekitError(f"{shown}: is of a Ray client; run on a node of the cluster, or with `ray job submit`")
    host, _, port = chosen.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise PilekitError(
            f"{shown}: name the head of the Ray cluster as HOST:PORT, or take auto for this machine's cluster"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PilekitError(f"{shown}: no Ray cluster answers there ({why}); check the address") from error
    return chosen


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard output to file descriptor 2: Ray's C++ code writes there the same message as its exception."""
    shown = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
