"""Work on many shards on a Ray cluster: `with Ray("10.0.0.7:6379") as ray: corpus_stats("pile/", cluster=ray)`.

Files on shared storage hold the data, Ray schedules the tasks, and ray_worker.py runs on the nodes. The contract is
that of local processes: results in order, at most two tasks per job held, the first failure at the end. In addition:

- Ray's own retries are off, because they would repeat a task that kills its worker. After the loss of a node, its tasks
  and those that have not begun are resubmitted. A worker's death fails its shard; several shards are tried one by one.
- The node list is read every 2 seconds, because Ray takes minutes to give up a node that hangs. Such a node may wake
  and resume. It publishes nothing then, because the lock file names the tasks that were resubmitted.
- The end of a call cancels its tasks, so that they remove their partial files, and kills those that do not stop.
- By default, Ray starts a cluster if it finds none, waits minutes at a wrong address, writes the errors of its nodes to
  standard output, and ends at SIGTERM with a stack trace. This module prevents all of that.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, counted, message_logger, visible
from pilekit.workers.cluster import Advance, raise_first
from pilekit.workers.ray_worker import MOST_BYTES, SHARE, NodeCheck, Progress, Report, run_task, versions, wait_for_file

T = TypeVar("T")
R = TypeVar("R")

logger = message_logger(__name__)

TASK_BYTES, TASK_ITEMS = 256 << 20, 16
"""The most stored bytes, and the most shards, of a task of several small shards."""
MEMORY, MEMORY_PER_THREAD = 300 << 20, 100 << 20
PROBE_SECONDS, NODES_SECONDS, STOP_SECONDS, TURN_SECONDS = 8.0, 2.0, 2.0, 0.25
LOSSES = 3
"""The most times that a lost task is resubmitted."""


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
        # Ray reads these when it is imported. It then gives up on wrong answers after half a minute.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
        os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "3")
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise PilekitError("a Ray cluster needs the package ray: pip install 'pilekit[ray]'") from error
        with ExitStack() as stack:
            worker: Any = importlib.import_module("ray._private.worker")
            stack.callback(setattr, worker, "print_worker_logs", worker.print_worker_logs)
            worker.print_worker_logs = lambda *_: None  # It prints the errors of nodes on standard output.
            terminate = stack.enter_context(_own_signals())
            try:
                with _without_stderr():
                    self.ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
            except Exception as error:
                why = visible(" ".join(str(error).split()), 300)
                raise PilekitError(
                    f"{address}: cannot join this Ray cluster ({why}); run on one of its nodes, with its "
                    "versions of Ray and Python, and with its token if it has one (RAY_AUTH_MODE=token)"
                ) from error
            stack.callback(self.ray.shutdown)
            terminate()
            here = self.ray.get_runtime_context()
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            on_this_node = strategies.NodeAffinitySchedulingStrategy(here.get_node_id(), soft=False)
            self.progress = self.ray.remote(num_cpus=0, scheduling_strategy=on_this_node)(Progress).remote()
            self.address, self.serials, self._open = here.gcs_address, count(), stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def __str__(self) -> str:
        release = ".".join(self.ray.__version__.split(".")[:2])
        nodes = counted(len(self.nodes()), "node")
        return f"Ray {release} at {self.address}: {nodes}, {counted(sum(self.cpus()), 'CPU')}"

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The living nodes by their ids."""
        return {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}

    def cpus(self) -> list[int]:
        """The CPUs of each node."""
        return [int(node["Resources"].get("CPU", 0)) for node in self.nodes().values()]

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
        ray, threads, nonce = self.ray, self.threads(jobs), secrets.token_hex(16)
        if lock is not None:
            lock.write_text(nonce)
        settings = {name: value for name, value in os.environ.items() if name.startswith("PILEKIT_")}
        call = NodeCheck(os.getcwd(), versions(), settings, None if lock is None else str(lock), nonce)  # noqa: PTH109
        payloads = [ray.cloudpickle.dumps(item) for item in items]
        for payload, label in zip(payloads, labels, strict=True):
            if len(payload) > MOST_BYTES:
                raise PilekitError(f"{label}: takes {len(payload):,} bytes, more than a cluster's task is given")
        work = ray.put(ray.cloudpickle.dumps(function))
        least = min(node["Resources"]["memory"] for node in self.nodes().values())
        memory = min(least, memory + MEMORY + threads * MEMORY_PER_THREAD)
        remote = ray.remote(num_cpus=threads, memory=memory, max_retries=0, scheduling_strategy="SPREAD")(run_task)

        def submit(task: _Task) -> Any:
            items = [payloads[item] for item in task.items]
            return remote.remote(call._replace(task=task.serial), work, items, self.progress)

        run = _Run(self, submit, gathered(items, jobs), jobs, on_progress, lock)
        try:
            for result in run.results(len(items)):
                yield pickle.loads(result)
            raise_first(run.errors, labels, run.places)
        finally:
            run.stop()
            for answer in lock.parent.glob(f"{lock.name}.*.partial") if lock is not None else ():
                answer.unlink(missing_ok=True)


def _checked(address: str | None) -> str:
    """The address, if something listens there."""
    named = os.environ.get("RAY_ADDRESS") or ""
    given = (named or "auto") if address == "auto" else address or named
    shown = visible(given or "no address", 100)
    if address == given == "auto":
        return given
    if given.startswith("ray://"):
        raise PilekitError(f"{shown}: is of a Ray client; run on a node of the cluster, or with `ray job submit`")
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise PilekitError(
            f"{shown}: name the head of the Ray cluster as HOST:PORT, or take auto for this machine's cluster"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PilekitError(f"{shown}: no Ray cluster answers there ({why}); check the address") from error
    return given


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


@contextmanager
def _own_signals() -> Iterator[Callable[[], object]]:
    """Yield a function to call after `ray.init`: SIGTERM then cancels the tasks and ends the process as usual."""
    is_main, terminated = threading.current_thread() is threading.main_thread(), False

    def leave(number: int, frame: object) -> None:
        nonlocal terminated
        is_first, terminated = not terminated, True
        # A callback of C code, such as numba's, prints and discards the exception, so it is raised again.
        sys.unraisablehook = lambda _: None
        signal.signal(signal.SIGALRM, leave)
        signal.alarm(1)
        if is_first or sys.exc_info()[1] is None:  # Another one would interrupt the cleaning up.
            sys.exit()

    before = signal.getsignal(signal.SIGTERM)
    try:
        yield lambda: signal.signal(signal.SIGTERM, leave) if is_main else None
    except SystemExit as error:  # Until then, Ray's own handler exits with the signal's number.
        terminated = terminated or error.code == signal.SIGTERM
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if terminated else before)
        if terminated:
            os.kill(os.getpid(), signal.SIGTERM)


def gathered(items: Sequence[Any], jobs: int) -> list[list[int]]:
    """The item numbers of each task, in order; eight tasks per job if possible, so that jobs end together."""
    # An item is a shard, or a tuple that begins with one.
    sizes = [getattr(item[0] if isinstance(item, tuple) else item, "size", None) or TASK_BYTES for item in items]
    most = min(TASK_BYTES, sum(sizes) // (8 * jobs))
    tasks: list[list[int]] = []
    held = 0
    for number, size in enumerate(sizes):
        if not tasks or held + size > most or len(tasks[-1]) == TASK_ITEMS:
            tasks.append([])
            held = 0
        tasks[-1].append(number)
        held += size
    return tasks


@dataclass(eq=False)
class _Task:
    """The items of a task, how often it was lost, its number and node, and the bytes done."""

    items: list[int]
    losses: int = 0
    serial: int = -1
    node: str | None = None
    done: int = 0


class _Run:
    """One call: the tasks waiting and running, the results and failures of items."""

    def __init__(
        self, engine: Ray, submit: Callable[[_Task], Any], tasks: list[list[int]], jobs: int, report: Advance, lock: Any
    ):
        self.engine, self.ray, self.submit, self.jobs = engine, engine.ray, submit, jobs
        self.window = 2 * jobs * max(map(len, tasks))
        self.waiting, self.running, self.by_serial = deque(map(_Task, tasks)), dict[Any, _Task](), dict[int, _Task]()
        self.done, self.errors, self.places = dict[int, bytes](), dict[int, Exception](), dict[int, str]()
        self.report, self.finished, self.shown, self.told = report, 0, 0, set[str]()
        self.asked: Any = None
        self.lock, self.answers = lock, set[str]()
        self.nodes, self.looked, self.threads = engine.nodes(), time.monotonic(), engine.threads(jobs)
        self.alive, self.dead = set(self.nodes), set[str]()

    def results(self, items: int) -> Generator[bytes, None, None]:
        """The results in the order of the items, up to the first failure; ends when all items are done."""
        yielded = 0
        while yielded < items:
            while self.waiting and len(self.running) < self.jobs and self.waiting[0].items[0] < yielded + self.window:
                task = self.waiting.popleft()
                task.serial = next(self.engine.serials)
                self.running[self.submit(task)] = self.by_serial[task.serial] = task
            for ref in self.ray.wait(list(self.running), timeout=TURN_SECONDS)[0]:
                self._take(ref, self.running.pop(ref))
            if time.monotonic() >= self.looked + NODES_SECONDS:
                self._look_for_lost_nodes()
            self._show_progress()
            while yielded in self.done or yielded in self.errors:
                result = self.done.pop(yielded, None)
                yielded += 1
                if result is not None and yielded <= min(self.errors, default=items):
                    yield result

    def stop(self) -> None:
        """Cancel the running tasks, and kill those that have not ended after two seconds."""
        refs = list(self.running)
        for force in (False, True):
            for ref in refs:
                with suppress(Exception):
                    self.ray.cancel(ref, force=force)
            if refs and not force:
                refs = self.ray.wait(refs, num_returns=len(refs), timeout=STOP_SECONDS)[1]

    def _take(self, ref: Any, task: _Task) -> None:
        """Take the report of a task, or handle the error that it ended with."""
        errors = self.ray.exceptions
        try:
            self._take_report(task, self.ray.get(ref))
        except (errors.NodeDiedError, errors.ObjectLostError) as error:
            # Its text names the node, which a short task may not have told yet.
            text = str(error) if isinstance(error, errors.NodeDiedError) else ""
            self._look_for_lost_nodes(*(node for node in self.nodes if node in text))
            self._give_again(task)
        except (errors.OutOfMemoryError, errors.WorkerCrashedError) as error:
            time.sleep(STOP_SECONDS / 2)  # A dying node's worker may die before the node does.
            for _ in range(3):  # The answer under way, a question, its answer: a task that died early told its node.
                self._show_progress(STOP_SECONDS / 2)
            self._look_for_lost_nodes()
            if task.node in self.nodes and task.node not in self.alive:
                self._give_again(task)
            elif len(task.items) > 1:  # Only one of them may have killed the worker.
                self.waiting.extendleft(_Task([number], task.losses) for number in reversed(task.items))
            elif isinstance(error, errors.OutOfMemoryError):
                self._fail(task, "ran out of memory; use fewer jobs")
            else:
                self._fail(task, "the process that worked on it was killed; if memory ran out, use fewer jobs")
        except errors.RayError as error:
            why = visible(str(error).strip().rpartition("\n")[2], 300)
            raise PilekitError(f"{self._name(task.node)}: {why}; install the same pilekit on all nodes") from error

    def _take_report(self, task: _Task, report: Report) -> None:
        if report.refused is not None:
            raise PilekitError(f"{self._name(report.node)} {report.refused}")
        if report.answer is not None and report.answer not in self.answers:
            folder = Path(report.answer).parent
            if not wait_for_file(Path(report.answer).exists, folder):
                where = f"writes into another folder {visible(folder)} than the driver's"
                raise PilekitError(f"{self._name(report.node)} {where}; {SHARE}")
            self.answers.add(report.answer)
        self.finished += report.done
        for number, outcome in zip(task.items, report.outcomes, strict=True):
            if isinstance(outcome, bytes):
                self.done[number] = outcome
            else:
                self.errors[number], self.places[number] = outcome, self._name(report.node)
        for name, level, text in report.warnings:
            if text not in self.told:
                self.told.add(text)
                logging.getLogger(name).log(level, "%s", text)

    def _fail(self, task: _Task, why: str) -> None:
        """Fail the items of a task that gave no report."""
        for number in task.items:
            self.errors[number], self.places[number] = PilekitError(why), self._name(task.node)

    def _give_again(self, task: _Task) -> None:
        """Resubmit a lost task; if its lost copy wakes up, that copy publishes nothing (`is_superseded`)."""
        if self.lock is not None:
            with self.lock.open("a") as file:
                file.write(f" {task.serial}")
        if task.losses < LOSSES:
            self.waiting.appendleft(_Task(task.items, task.losses + 1))
        else:
            self._fail(task, f"was given out {counted(LOSSES + 1, 'time')}, and its node was lost each time")

    def _look_for_lost_nodes(self, *died: str) -> None:
        """Resubmit the tasks that ran on lost nodes, and those that have not begun, because they may wait there.

        died   nodes whose death failed a task; the list of nodes may show them for some seconds more
        """
        self.dead.update(died)
        alive = {node: about for node, about in self.engine.nodes().items() if node not in self.dead}
        self.looked = time.monotonic()
        lost, self.alive = self.alive - set(alive), set(alive)
        self.nodes |= alive
        for node in lost:
            logger.warning("%s is lost; its shards are given out again", self._name(node))
        for ref, task in list(self.running.items()) if lost else ():
            if task.node is None or task.node in lost:
                del self.running[ref]
                with suppress(Exception):
                    self.ray.cancel(ref)
                self._give_again(task)
        if all(node["Resources"].get("CPU", 0) < self.threads for node in alive.values()):
            raise PilekitError(f"no node with {counted(self.threads, 'CPU')} is left; run the same command again")

    def _show_progress(self, timeout: float = 0.0) -> None:
        """Report the change of all tasks' bytes done; it is negative when work is lost."""
        if self.asked is None and self.engine.progress is not None:
            self.asked = self.engine.progress.news.remote()
        elif self.asked is not None and self.ray.wait([self.asked], timeout=timeout)[0]:
            try:
                for serial, figures in self.ray.get(self.asked).items():
                    if serial in self.by_serial:
                        self.by_serial[serial].node, self.by_serial[serial].done = figures
            except self.ray.exceptions.RayError:
                self.engine.progress = None  # Only the progress line stands still.
            self.asked = None
        done = self.finished + sum(task.done for task in self.running.values())
        if done != self.shown:
            self.report(done - self.shown)
            self.shown = done

    def _name(self, node: str | None) -> str:
        return f"node {self.nodes[node]['NodeManagerAddress']}" if node in self.nodes else "a node"
