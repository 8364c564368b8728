"""`notebook_launch`: a function in several ranks, from a notebook or a script.

A function that a fresh Python can import, with arguments that it can unpickle, runs in fresh processes: nothing of this
one is with them. What a notebook or a script defines itself no other process can import; it runs in forks of this
process. A fork has what its parent had, but of its threads only the one that forked. So it is made by a thread of its
own, which has never computed: for the threads that OpenMP keeps for any other, its fork would wait for ever. What
cannot be forked (an open process group, a GPU in use) is refused; the error says what helps: a function in a module, or
a fresh kernel.

The ranks meet in a store of this process, so no port can be taken by another between choosing and using it.
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
"""For the others to end by themselves when one rank has failed: they hear of it as soon as they talk to it."""


def notebook_launch(fn: Callable[..., T], nproc: int, *args: Any) -> T:
    """Run `fn(*args)` in `nproc` ranks of this machine at once, and return what it returns in rank 0.

    In each of them a `Trainer`, a `PileStream` and torch.distributed find rank and world size by themselves; a machine
    with GPUs gives each its own. The cores are shared out as threads, unless OMP_NUM_THREADS says how many.

    An interrupt (Ctrl-C, a notebook's stop button) is passed on: a Trainer then saves and returns. A second one ends
    all at once. PilekitError if a rank fails, with its message or, in the notes, its traceback.
    """
    if type(nproc) is not int or nproc < 1:
        raise PilekitError(f"nproc is a whole number from 1 on, not {visible(repr(nproc), 80)}")
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from pilekit.train.launch.launch import check_gpus, rank_environment

    check_gpus(nproc, "nproc =")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environments = [
        {
            **rank_environment(nproc),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(nproc),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        for rank in range(nproc)
    ]
    work = _importable(fn, args)
    if work is not None:
        ranks = [_fresh(work, environment) for environment in environments]
    else:
        _check_forkable(torch)
        ranks = _forks(fn, args, environments)
    value: T = _result(ranks)
    return value


@dataclass(frozen=True, slots=True)
class _Rank:
    """A process that leads a session of its own, and what it says: (worked, value or (line, traceback))."""

    pid: int
    answers: Connection[Any, Any]
    join: Callable[[], object]


def _importable(fn: Callable[..., Any], args: Sequence[Any]) -> bytes | None:
    """Function and arguments pickled, if another process can make something of that."""
    try:
        work = pickle.dumps((fn, args))
    except Exception:  # a lambda, an inner function, an open file: whatever pickle says of it
        return None
    return None if b"__main__" in work else work


def _fresh(work: bytes, environment: dict[str, str]) -> _Rank:
    """A new Python that runs `work`."""
    ours, theirs = multiprocessing.Pipe()
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-m", "pilekit.train.launch.notebook", str(theirs.fileno())],
        env={**os.environ, **environment, "PYTHONPATH": path},
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    with contextlib.suppress(BrokenPipeError):  # it is gone already, which is heard of later
        ours.send_bytes(work)
    return _Rank(process.pid, ours, process.wait)


def _forks(fn: Callable[..., Any], args: Sequence[Any], environments: Sequence[dict[str, str]]) -> list[_Rank]:
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

    for stream in (sys.stdout, sys.stderr):  # or each fork would write again what stands there
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

    with contextlib.suppress(ValueError):  # a list, one for each level: not of use here
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    _answer(answers, fn, args)


def _answer(answers: Connection[Any, Any], fn: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run the function and send what came of it."""
    try:
        value = fn(*args)
        answer = pickle.dumps((True, value if os.environ["RANK"] == "0" else None))
    except BaseException as error:
        line = str(error) if isinstance(error, PilekitError) else ""
        kind = type(error).__name__
        text = visible(str(error).partition("\n")[0], 300)
        told = "" if line else f"{kind}{text and f': {text}'}"
        answer = pickle.dumps((False, (line, told, traceback.format_exc())))
    with contextlib.suppress(BrokenPipeError):
        answers.send_bytes(answer)


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


def _result(ranks: Sequence[_Rank]) -> Any:
    """What rank 0 answered; when this returns or raises, all ranks have ended."""
    answers: dict[int, Any] = {}
    failed: int | None = None  # the first that did
    interrupted = False
    end = float("inf")
    try:
        while len(answers) < len(ranks) and time.monotonic() < end:
            try:
                waiting = {one.answers: rank for rank, one in enumerate(ranks) if rank not in answers}
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
                if failed is None and (answers[rank] is None or not answers[rank][0]):
                    failed, end = rank, time.monotonic() + GRACE_SECONDS
    finally:
        finished = failed is None and len(answers) == len(ranks)
        for one in ranks:
            if not finished:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            one.join()
            one.answers.close()
    if failed is not None:
        raise _error(answers, interrupted=interrupted)
    return answers[0][1]


def _error(answers: dict[int, Any], *, interrupted: bool) -> BaseException:
    """The error to raise: of a rank that died, else of one that failed by itself, else of one that lost another."""
    for rank, answer in sorted(answers.items()):
        if answer is None:
            return PilekitError(f"rank {rank} died without a word; look at what it and the system said (memory?)")
    own = [(rank, told) for rank, (worked, told) in sorted(answers.items()) if not worked]
    if interrupted and all(told[1].startswith("KeyboardInterrupt") for _, told in own):
        return KeyboardInterrupt()
    rank, (line, told, trace) = min(own, key=lambda one: (": another rank is gone" in one[1][0], one[0]))
    if line:
        return PilekitError(line)
    error = PilekitError(f"rank {rank} failed with {told}")
    error.add_note(trace)
    return error


if __name__ == "__main__":
    _connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    _function, _args = pickle.loads(_connection.recv_bytes())
    importlib.import_module("pilekit.train.launch.notebook")._answer(_connection, _function, _args)
