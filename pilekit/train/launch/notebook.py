"""`notebook_launch`: a function in several ranks, from a notebook or a script.

A function that a fresh Python can import, with picklable arguments, runs in fresh processes that inherit nothing. No
other process can import a function that a notebook or a script defines itself, so such a function runs in forks of
this process. A fork copies only the thread that forks. If that thread has computed, the fork would wait forever for
OpenMP's other threads; so a new thread makes the forks. A process with an open process group or a GPU in use cannot
fork, and the error names the remedy: a function in a module, or a fresh kernel.

The ranks meet in a store of this process, so no other program can take the port between its choice and its use.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from pilekit.errors import PilekitError, visible

T = TypeVar("T")

GRACE_SECONDS = 15.0
"""Time for the other ranks to end by themselves after one has failed."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """A process in a session of its own. `answers` yields one pickled pair: (True, value) or (False, `_Failure`)."""

    pid: int
    answers: Connection[Any, Any]
    join: Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error of a rank; `message` is set for a PilekitError, which needs no traceback."""

    message: str
    summary: str
    trace: str


def notebook_launch(fn: Callable[..., T], nproc: int, *args: Any) -> T:
    """Run `fn(*args)` in `nproc` ranks of this machine at once, and return the result of rank 0.

    In each of them a `Trainer`, a `PileStream` and torch.distributed find rank and world size by themselves; a machine
    with GPUs gives each its own. The cores are shared out as threads, unless OMP_NUM_THREADS says how many.

    An interrupt (Ctrl-C, a notebook's stop button) is passed on: a Trainer then saves and returns. A second one ends
    all at once. Raises PilekitError if a rank fails, with its message or, in the notes, its traceback.
    """
    if type(nproc) is not int or nproc < 1:
        raise PilekitError(f"nproc is a whole number from 1 on, not {visible(repr(nproc), 80)}")
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from pilekit.train.launch.launch import check_gpus, rank_environment

    check_gpus(nproc, "nproc =")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = rank_environment(nproc) | {"WORLD_SIZE": str(nproc), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    environments = [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(nproc)]
    work = _importable(fn, args)
    if work is not None:
        ranks = [_fresh(work, environment) for environment in environments]
    else:
        _check_forkable(torch)
        ranks = _forks(fn, args, environments)
    value: T = _result(ranks)
    return value


def _importable(fn: Callable[..., Any], args: Sequence[Any]) -> bytes | None:
    """Function and arguments, pickled; None if another process could not unpickle them."""
    try:
        work = pickle.dumps((fn, args))
    except Exception:  # a lambda, an inner function, an open file: pickle raises many kinds
        return None
    return None if b"__main__" in work else work


def _fresh(work: bytes, environment: dict[str, str]) -> _Rank:
    """Start a new Python that runs `work`."""
    ours, theirs = multiprocessing.Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "pilekit.train.launch.notebook", str(theirs.fileno())],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    with contextlib.suppress(BrokenPipeError):  # it has died, which `_result` will see
        ours.send_bytes(work)
    return _Rank(process.pid, ours, process.wait)


def _check_forkable(torch: Any) -> None:
    why = None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        why = "this process has joined a process group (a Trainer does)"
    elif torch.cuda.is_initialized():
        why = "this process uses a GPU"
    if why is not None:
        raise PilekitError(
            f"{why}, so ranks cannot be forked from it; put the function into a module and import it from there, or "
            "restart the kernel and call notebook_launch first"
        )


def _forks(fn: Callable[..., Any], args: Sequence[Any], environments: Sequence[dict[str, str]]) -> list[_Rank]:
    """Fork this process once for each environment, from a new thread."""
    ranks: list[_Rank] = []
    context = multiprocessing.get_context("fork")

    def start() -> None:
        for environment in environments:
            ours, theirs = context.Pipe()
            process = context.Process(target=_forked, args=(fn, args, environment, ours, theirs))
            process.start()
            theirs.close()
            assert process.pid is not None
            ranks.append(_Rank(process.pid, ours, process.join))

    for stream in (sys.stdout, sys.stderr):  # or each fork would write the buffered text again
        stream.flush()
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return ranks


def _forked(
    fn: Callable[..., Any],
    args: Sequence[Any],
    environment: dict[str, str],
    parents: Connection[Any, Any],
    answers: Connection[Any, Any],
) -> None:
    parents.close()
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    import torch

    with contextlib.suppress(ValueError):  # OMP_NUM_THREADS may be a list, one number per level
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    _answer(answers, fn, args)


def _answer(answers: Connection[Any, Any], fn: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run the function and send its result or its error."""
    try:
        value = fn(*args)
        answer = pickle.dumps((True, value if os.environ["RANK"] == "0" else None))
    except BaseException as error:
        message = str(error) if isinstance(error, PilekitError) else ""
        text = visible(str(error).partition("\n")[0], 300)
        summary = f"{type(error).__name__}{text and f': {text}'}"
        answer = pickle.dumps((False, _Failure(message, summary, traceback.format_exc())))
    with contextlib.suppress(BrokenPipeError):
        answers.send_bytes(answer)


def _result(ranks: Sequence[_Rank]) -> Any:
    """The answer of rank 0. When this returns or raises, all ranks have ended."""
    answers: dict[int, tuple[bool, Any] | None] = {}  # None for a rank that died
    interrupted, end = False, float("inf")
    try:
        while len(answers) < len(ranks) and time.monotonic() < end:
            waiting = {one.answers: rank for rank, one in enumerate(ranks) if rank not in answers}
            try:
                ready = wait(list(waiting), None if end == float("inf") else max(0.0, end - time.monotonic()))
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                for one in ranks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one.pid, signal.SIGINT)
                continue
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting[connection]
                try:
                    answers[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    answers[rank] = None
                if end == float("inf") and not (answers[rank] or (False,))[0]:
                    end = time.monotonic() + GRACE_SECONDS
    finally:
        for one in ranks:
            if end < float("inf") or len(answers) < len(ranks):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            one.join()
            one.answers.close()
    if end < float("inf"):
        raise _error(answers, interrupted=interrupted)
    assert answers[0] is not None
    return answers[0][1]


def _error(answers: dict[int, tuple[bool, Any] | None], *, interrupted: bool) -> BaseException:
    """The error to raise: of a rank that died, else of a rank that failed by itself, else of a rank that lost
    another."""
    failures: list[tuple[int, _Failure]] = []
    for rank, answer in sorted(answers.items()):
        if answer is None:
            return PilekitError(f"rank {rank} died without a message; see its output and the system's log (memory?)")
        if not answer[0]:
            failures.append((rank, answer[1]))
    if interrupted and all(failure.summary.startswith("KeyboardInterrupt") for _, failure in failures):
        return KeyboardInterrupt()
    rank, failure = min(failures, key=lambda one: (": another rank is gone" in one[1].message, one[0]))
    if failure.message:
        return PilekitError(failure.message)
    error = PilekitError(f"rank {rank} failed with {failure.summary}")
    error.add_note(failure.trace)
    return error


if __name__ == "__main__":
    _connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    _function, _args = pickle.loads(_connection.recv_bytes())
    importlib.import_module("pilekit.train.launch.notebook")._answer(_connection, _function, _args)
