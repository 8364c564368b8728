"""`notebook_launch`: run a function in several ranks, from a notebook or a script.

No other process can import a function that a notebook or a script defines itself. So the ranks are forks of this
process, which `torch.multiprocessing` starts, watches and ends. A fork copies only the thread that forks. If that
thread has computed, the fork would wait forever for OpenMP's other threads, so a new thread makes the forks. It lives
until they end, because its end would send them an interrupt. A process with an open process group or a GPU in use
cannot fork, and the error names the remedy.

The ranks meet in a store of this process, whose port listens from the start, so no other program can take it. The store
itself comes after the last fork. Its thread names each rank that connects, and the C library does that under a lock: a
rank forked in that moment would have the lock closed for good, and wait for it at its first connection.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pilekit.errors import PilekitError, shortened, visible
from pilekit.train.launch.environment import check_gpus, rank_environment
from pilekit.train.launch.interrupt import pass_on
from pilekit.train.launch.launch import first_failed, how_ended

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import ProcessContext

T = TypeVar("T")

GRACE_SECONDS = 15.0
"""Time for the other ranks to end by themselves after one has failed."""


def notebook_launch(fn: Callable[..., T], nproc: int, *args: Any) -> T:
    """Run `fn(*args)` in `nproc` ranks of this machine at once, and return the result of rank 0.

    In each rank, a `Trainer`, a `PileStream` and torch.distributed find rank and world size by themselves. With GPUs,
    each rank has its own. The cores are divided among the ranks as threads, unless OMP_NUM_THREADS is set. Call it as
    often as you like, but before this process itself makes a `Trainer` or uses a GPU.

    An interrupt (Ctrl-C, a notebook's stop button) is passed on: a Trainer then saves and returns. A second one ends
    all ranks at once. Raises PilekitError if a rank fails, with its message or, in the notes, its traceback.
    """
    if type(nproc) is not int or nproc < 1:
        raise PilekitError(f"nproc is a whole number from 1 on, not {shortened(repr(nproc), 80)}")
    import torch
    from torch.multiprocessing.spawn import start_processes

    check_gpus(nproc, "nproc =")
    _check_forkable(torch)
    meeting = socket.create_server(("127.0.0.1", 0))
    job = rank_environment(nproc) | {"WORLD_SIZE": str(nproc), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.getsockname()[1])}
    for stream in (sys.stdout, sys.stderr):  # or each fork would write the buffered text again
        stream.flush()
    started: Future[ProcessContext] = Future()
    ended = threading.Event()

    def start() -> None:
        work = (fn, args, job, Path(folder), meeting)
        try:
            ranks = start_processes(_run, work, nproc, join=False, start_method="fork")  # type: ignore[no-untyped-call]
            started.set_result(ranks)
        except BaseException as error:
            started.set_exception(error)
        ended.wait()

    with tempfile.TemporaryDirectory(prefix="pilekit-notebook-") as folder, meeting:
        threading.Thread(target=start, daemon=True).start()  # in a fork, an executor's thread would wait for itself
        try:
            _wait(started.result(), Path(folder), meeting)
        finally:
            ended.set()
        result = Path(folder, "result")
        if not result.exists():  # rank 0 was interrupted
            raise KeyboardInterrupt
        return pickle.loads(result.read_bytes())  # type: ignore[no-any-return]


def _check_forkable(torch: Any) -> None:
    why = None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        why = "this process has joined a process group (a Trainer does)"
    elif torch.cuda.is_initialized():
        why = "this process uses a GPU"
    if why is not None:
        raise PilekitError(
            f"{why}, so ranks cannot be forked from it; restart the kernel and call notebook_launch first, or put the "
            "function into a script and start that with torchrun"
        )


def _run(
    rank: int, fn: Callable[..., Any], args: Sequence[Any], job: dict[str, str], folder: Path, meeting: socket.socket
) -> None:
    """In a fork: become a rank, run the function, and leave its result or the line for its error in `folder`."""
    import torch

    meeting.close()  # or a port would stay open after the process that answers there has ended
    _renew_output()
    os.setsid()  # a terminal's Ctrl-C comes from the parent alone
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(job, RANK=str(rank), LOCAL_RANK=str(rank))
    with contextlib.suppress(ValueError):  # OMP_NUM_THREADS may be a list, one number per level
        torch.set_num_threads(int(job["OMP_NUM_THREADS"]))
    try:
        value = fn(*args)
        if rank == 0:
            (folder / "result").write_bytes(pickle.dumps(value))
    except Exception as error:
        text = visible(str(error).partition("\n")[0], 300)
        line = f"rank {rank} failed with {type(error).__name__}{text and f': {text}'}"
        message = str(error) if isinstance(error, PilekitError) else f"{line}\n{traceback.format_exc()}"
        (folder / f"{rank}.error").write_text(message)
        raise


def _renew_output() -> None:
    """Let a fork of a notebook print, even if a thread of the notebook was printing at the fork.

    The streams of ipykernel have a lock, which nothing in the fork would open, and text that the notebook itself sends.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "_buffer_lock") and hasattr(stream, "_rotate_buffers"):
            stream._buffer_lock = threading.RLock()
            stream._rotate_buffers()


def _wait(ranks: ProcessContext, folder: Path, meeting: socket.socket) -> None:
    """Let the ranks meet in a store at the port of `meeting`, wait for the end of all, and raise if one has failed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.multiprocessing.spawn import ProcessException

    interrupted, store = False, None
    try:
        port = meeting.getsockname()[1]
        listening = meeting.detach()
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening)
        while True:
            try:
                if ranks.join(grace_period=GRACE_SECONDS):
                    return
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                pass_on(signal.SIGINT, (process.pid for process in ranks.processes))
    except ProcessException:
        raise _error([process.exitcode for process in ranks.processes], folder) from None
    finally:
        for process in ranks.processes:
            if process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)
                process.join()
        del store  # an error's traceback would keep it, and its thread beside the next forks


def _error(codes: list[int], folder: Path) -> PilekitError:
    """The error of the rank that failed by itself, not of ranks that lost another rank or were terminated after it."""
    messages = {rank: file.read_text() for rank in range(len(codes)) if (file := folder / f"{rank}.error").exists()}
    culprits = [rank for rank, message in messages.items() if ": another rank is gone" not in message]
    rank = first_failed({rank: code for rank, code in enumerate(codes) if code}, culprits)
    silent = f"rank {rank} {how_ended(codes[rank])}; see its output and the system's log"
    line, _, trace = messages.get(rank, silent).partition("\n")
    error = PilekitError(line)
    if trace:
        error.add_note(trace)
    return error
