"""`notebook_launch`: a function in several ranks, from a notebook or a script.

The ranks are forks of this process, because no other process can import a function that a notebook defines. A fork
copies only the thread that forks. If that thread has computed, the fork would wait forever for OpenMP's other threads;
so a new thread makes the forks. A process with an open process group or a GPU in use cannot fork, and the error names
the remedy.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from pilekit.errors import PilekitError, ToldElsewhere, visible
from pilekit.train.launch.launch import check_gpus, rank_environments

T = TypeVar("T")

GRACE_SECONDS = 15.0
"""Time for the other ranks to end by themselves after one has failed."""


def notebook_launch(fn: Callable[..., T], nproc: int, *args: Any) -> T:
    """Run `fn(*args)` in `nproc` ranks of this machine at once, and return the result of rank 0.

    In each of them a `Trainer`, a `PileStream` and torch.distributed find rank and world size by themselves; a machine
    with GPUs gives each its own. The cores are shared out as threads, unless OMP_NUM_THREADS says how many. Call this
    before the process makes a `Trainer` or uses a GPU.

    An interrupt (Ctrl-C, a notebook's stop button) is passed on: a Trainer then saves and returns. A second one ends
    all at once. Raises PilekitError if a rank fails, with its message or, in the notes, its traceback.
    """
    if type(nproc) is not int or nproc < 1:
        raise PilekitError(f"nproc is a whole number from 1 on, not {visible(repr(nproc), 80)}")
    check_gpus(nproc, "nproc =")
    _check_forkable()
    environments, store = rank_environments(nproc)
    context = multiprocessing.get_context("fork")
    ranks: list[tuple[BaseProcess, Connection[Any, Any]]] = []

    def start() -> None:
        for environment in environments:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(fn, args, environment, theirs))
            process.start()
            theirs.close()
            ranks.append((process, ours))

    for stream in (sys.stdout, sys.stderr):  # or each fork would write the buffered text again
        stream.flush()
    try:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        value: T = _result(ranks)
    finally:
        del store  # an error's traceback would keep it alive until the next call's forks
    return value


def _check_forkable() -> None:
    import torch

    why = None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        why = "this process has joined a process group (a Trainer does)"
    elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        why = "this process uses a GPU"
    if why is not None:
        raise PilekitError(
            f"{why}, so ranks cannot be forked from it; restart the kernel and call notebook_launch first"
        )


def _run(
    fn: Callable[..., Any], args: Sequence[Any], environment: dict[str, str], answers: Connection[Any, Any]
) -> None:
    """In a fork: call the function, and send rank 0's result or the error."""
    gc.freeze()  # this process must not free the parent's stores: it would wait for their threads, which it lacks
    os.setsid()
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    with suppress(ValueError):  # OMP_NUM_THREADS may be a list, one number per level
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    try:
        value = fn(*args)
        answer = pickle.dumps((value if environment["RANK"] == "0" else None, None))
    except (PilekitError, KeyboardInterrupt) as error:
        answer = pickle.dumps((None, error))
    except BaseException as error:
        text = visible(str(error).partition("\n")[0], 300)
        failed = PilekitError(f"rank {environment['RANK']} failed with {type(error).__name__}{text and f': {text}'}")
        failed.add_note(traceback.format_exc())
        answer = pickle.dumps((None, failed))
    with suppress(BrokenPipeError):
        answers.send_bytes(answer)


def _result(ranks: Sequence[tuple[BaseProcess, Connection[Any, Any]]]) -> Any:
    """The result of rank 0, or the error of the rank that failed by itself. When this ends, all ranks have ended."""
    results: dict[int, Any] = {}
    errors: list[BaseException] = []
    is_interrupted, end = False, float("inf")
    try:
        while len(results) < len(ranks) and time.monotonic() < end:
            waiting = {connection: rank for rank, (_, connection) in enumerate(ranks) if rank not in results}
            try:
                ready = wait(list(waiting), None if end == float("inf") else end - time.monotonic())
            except KeyboardInterrupt:
                if is_interrupted:
                    raise
                is_interrupted = True
                for process, _ in ranks:
                    _send(process, signal.SIGINT)
                continue
            for connection in ready:
                assert isinstance(connection, Connection)
                rank, error = waiting[connection], None
                try:
                    results[rank], error = connection.recv()
                except EOFError:
                    results[rank] = None
                    error = PilekitError(f"rank {rank} died without a message; see its output and the system's log")
                if error is not None:
                    errors.append(error)
                    end = min(end, time.monotonic() + GRACE_SECONDS)
    finally:
        for process, connection in ranks:
            if errors or len(results) < len(ranks):
                _send(process, signal.SIGKILL, to_group=True)
            process.join()
            connection.close()
    if errors:
        # Other ranks only report that they have lost the rank that failed.
        raise min(errors, key=lambda error: (isinstance(error, ToldElsewhere), isinstance(error, KeyboardInterrupt)))
    return results[0]


def _send(process: BaseProcess, number: signal.Signals, *, to_group: bool = False) -> None:
    """Send a signal to a rank, or to a rank and its workers."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.kill(-process.pid if to_group else process.pid, number)
