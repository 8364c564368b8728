"""`launch`: a run in several processes of this machine, restarted when one of them dies.

Torch's elastic agent starts the processes, gives each its rank and the address where they meet, watches them, ends all
when one fails, and restarts them. This module adds one clear line for a failure, and handles signals. Torch's own
launcher kills ranks 30 seconds after a signal, but a checkpoint may take longer. So Ctrl-C and SIGTERM are only passed
on, and the agent sees ranks that end by themselves. SIGHUP, of a closed terminal, is passed on as SIGTERM. Each rank
leads its own session, so a terminal's Ctrl-C reaches it once, through the launcher. (`elastic_launch` hides the ranks'
process numbers, so it could not pass signals on.)

If the launcher is killed, the kernel sends its ranks a SIGTERM (`end_with_launcher`). They save and end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType

from pilekit.display.progress import waiting
from pilekit.errors import PilekitError, counted
from pilekit.train.launch.environment import LAUNCHER, check_gpus, rank_environment
from pilekit.train.launch.interrupt import Handler, pass_on, stop_signals
from pilekit.workers.worker import end_with_parent

MODULE = "pilekit.train"
"""The module that a rank runs."""


def launch(nproc: int, arguments: list[str], max_restarts: int = 0, *, module: str = MODULE) -> int:
    """Run `python -m pilekit.train` with `arguments` in `nproc` ranks of this machine; returns the exit code.

    max_restarts   how often all ranks start again after one has failed
    module         the module that a rank runs

    Returns 0 if all ranks ended with 0, also when SIGTERM or SIGHUP asked them to save and stop; 130 after Ctrl-C.
    The cores are divided among the ranks as threads, or a rank on a GPU gets one, unless OMP_NUM_THREADS is set. Raises
    PilekitError if the machine has too few GPUs, and if a rank failed for the last time. Only a main thread whose
    process ends afterwards may call this.
    """
    received: list[int] = []
    _handle(lambda number, _: received.append(number))  # an exception during torch's imports might be lost
    codes = _exit_codes(nproc, [module, *arguments], max_restarts, received)
    stopped = (130, -signal.SIGINT, -signal.SIGTERM)  # a rank that had nothing to save yet
    if codes and not (received and all(code in stopped for code in codes.values())):
        rank = first_failed(codes)
        see = "" if codes[rank] < 0 else "; see its message above"
        restarts = "" if max_restarts == 0 else f", after {counted(max_restarts, 'restart')}"
        raise PilekitError(
            f"rank {rank} of the run {how_ended(codes[rank])}{see}{restarts}; the same command resumes from the newest "
            "checkpoint"
        )
    return 130 if signal.SIGINT in received else 0


def _exit_codes(nproc: int, words: list[str], max_restarts: int, received: list[int]) -> dict[int, int]:
    """The exit code of each rank that failed for the last time, in the order in which the agent saw them end.

    words   the module that a rank runs, and its arguments

    Appends the signals that arrive to `received`.
    """
    with waiting(f"starting {counted(nproc, 'rank')}"):
        from torch.distributed.elastic.agent.server.api import WorkerSpec
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        check_gpus(nproc, "--nproc-per-node")
    logging.disable()  # the agent's messages: one line of ours replaces them
    os.environ.update(rank_environment(nproc))
    os.environ.update({LAUNCHER: str(os.getpid()), "TORCHELASTIC_SIGNALS_TO_HANDLE": ""})
    rendezvous = get_rendezvous_handler(
        RendezvousParameters("c10d", "localhost:0", uuid.uuid4().hex, 1, 1, local_addr="localhost")
    )
    meet = rendezvous.next_rendezvous

    def meet_unless_stopped() -> object:
        if received:  # do not start again
            raise _Stopped
        return meet()

    rendezvous.next_rendezvous = meet_unless_stopped  # type: ignore[method-assign, assignment]
    # A file of the current folder must not shadow a module of Python or pilekit.
    safe_path = [] if Path.cwd() == Path(__file__).parents[3] else ["-P"]
    spec = WorkerSpec(
        role="rank",
        local_world_size=nproc,
        entrypoint=sys.executable,
        args=(*safe_path, "-m", *(word.replace("$", "$$") for word in words)),  # torch expands $
        rdzv_handler=rendezvous,
        max_restarts=max_restarts,
        monitor_interval=0.1,
    )
    with tempfile.TemporaryDirectory(prefix="pilekit-launch-") as folder:
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=folder), start_method="spawn")

        def stop_ranks(number: int, frame: FrameType | None) -> None:
            number = signal.SIGTERM if number == signal.SIGHUP else number
            received.append(number)
            if not pass_on(number, (worker.id for worker in agent.get_worker_group().workers)):
                raise _Stopped

        try:
            _handle(stop_ranks)
            result = agent.run()
        except _Stopped:
            return {}
        finally:
            _handle(signal.SIG_IGN)
            rendezvous.shutdown()
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


def _handle(handler: Handler) -> None:
    for number in stop_signals():
        signal.signal(number, handler)


class _Stopped(BaseException):
    """A signal came while there was no rank to pass it on to."""


def end_with_launcher() -> None:
    """In a rank that `launch` started, on Linux: ask for a SIGTERM to this process when the launcher ends."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return
    end_with_parent(signal.SIGTERM)
    if os.getppid() != int(launcher):  # it ended before
        raise SystemExit(0)


def first_failed(codes: Mapping[int, int], culprits: Collection[int] = ()) -> int:
    """The rank to blame, by the exit codes of the ranks in the order in which they ended.

    culprits   ranks that are known to have failed by themselves

    A rank that dies takes others along, so a killed rank is named before a failed one. The agent itself kills a rank
    that has not ended half a minute after the first death, so of killed ranks the first to end is named.
    """
    killed = [rank for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM]
    failed = [rank for rank, code in codes.items() if code > 0]
    return next(rank for rank in (*culprits, *killed, *failed, *codes))


def how_ended(code: int) -> str:
    """The end of a process that failed, in words, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    number = signal.Signals(-code)
    memory = ", as the system does when memory runs out" if number is signal.SIGKILL else ""
    return f"was killed by {number.name} (signal {number.value}){memory}"
