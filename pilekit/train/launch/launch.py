"""`launch`: a run in several processes of this machine, which start again when one of them dies.

The processes are torch's elastic agent's: it gives each its rank and the address where they meet, watches them, ends
all when one fails, and starts all again as often as it may. What is ours is what a person sees of it: one line for what
went wrong, and signals that arrive. torch's own launcher kills what has not ended 30 seconds after a signal; a
checkpoint takes as long as it takes, so here Ctrl-C and SIGTERM are only passed on, and the agent sees ranks that end
by themselves. Every rank leads a session of its own: the terminal's Ctrl-C reaches it through the launcher, and once.

Should the launcher itself be killed, the kernel sends its ranks a SIGTERM (`end_with_launcher`), and they save and end.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pilekit
from pilekit.errors import PilekitError

LAUNCHER = "PILEKIT_LAUNCHER"
"""In the environment of the ranks that `launch` started: the number of its process."""

MODULE = "pilekit.train"
"""What a rank runs."""

_PR_SET_PDEATHSIG = 1


def launch(nproc: int, arguments: list[str], max_restarts: int = 0) -> int:
    """Run `python -m pilekit.train` with `arguments` in `nproc` ranks of this machine; the exit code.

    max_restarts   how often all ranks are started anew after one has failed

    0 if all ranks ended with 0, which they also do when SIGTERM asked them to save and stop; 130 after Ctrl-C. The
    cores are shared out as threads, unless OMP_NUM_THREADS says how many. PilekitError if the machine has too few GPUs,
    and if a rank failed for the last time: which, and how it ended. To be called by the main thread.
    """
    received: list[int] = []
    before = {n: signal.signal(n, lambda number, _: received.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:  # from here on: a KeyboardInterrupt amid torch's imports may be lost in them
        codes = _exit_codes(nproc, arguments, max_restarts, received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    stopped = (130, -signal.SIGINT, -signal.SIGTERM)  # as one ends that has nothing to save yet
    if codes and not (received and all(code in stopped for code in codes.values())):
        raise PilekitError(_failure(codes, max_restarts))
    return 130 if signal.SIGINT in received else 0


def _exit_codes(nproc: int, arguments: list[str], max_restarts: int, received: list[int]) -> dict[int, int]:
    """The exit code of each rank that failed for the last time; signals that come are appended to `received`."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    check_gpus(nproc, "--nproc-per-node")
    settings = rank_environment(nproc) | {LAUNCHER: str(os.getpid())}
    settings["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""  # none: they are handled here
    with tempfile.TemporaryDirectory(prefix="pilekit-launch-") as folder, _quiet_elastic(), _inherited(settings):
        rendezvous = get_rendezvous_handler(
            RendezvousParameters("c10d", "localhost:0", uuid.uuid4().hex, 1, 1, local_addr="localhost")
        )
        meet = rendezvous.next_rendezvous

        def meet_unless_stopped() -> object:
            if received:  # whoever is to stop does not start again
                raise _Stopped
            return meet()

        rendezvous.next_rendezvous = meet_unless_stopped  # type: ignore[method-assign, assignment]
        # A file of the current folder must not take the place of one of Python's or pilekit's modules.
        safe_path = [] if Path.cwd() == Path(pilekit.__file__).parents[1] else ["-P"]
        spec = WorkerSpec(
            role="rank",
            local_world_size=nproc,
            entrypoint=sys.executable,
            # torch puts numbers into the arguments where they hold a $.
            args=(*safe_path, "-m", MODULE, *(argument.replace("$", "$$") for argument in arguments)),
            rdzv_handler=rendezvous,
            max_restarts=max_restarts,
            monitor_interval=0.1,
        )
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=folder), start_method="spawn")

        def pass_on(number: int, frame: FrameType | None) -> None:
            received.append(number)
            reached = False
            for worker in agent.get_worker_group().workers:
                with suppress(ProcessLookupError, TypeError):  # the latter: one that is only to be started
                    os.kill(worker.id, number)
                    reached = True
            if not reached:
                raise _Stopped

        try:
            signal.signal(signal.SIGINT, pass_on)
            signal.signal(signal.SIGTERM, pass_on)
            result = agent.run()
        except _Stopped:
            return {}
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            rendezvous.shutdown()
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


def end_with_launcher() -> None:
    """In a rank that `launch` started: have SIGTERM sent to this process when the launcher is gone (on Linux)."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):  # gone before it could be told
        raise SystemExit(0)


class _Stopped(BaseException):
    """A signal came while there was no rank to pass it on to."""


def _failure(codes: Mapping[int, int], max_restarts: int) -> str:
    """The line for exit codes by rank. One that dies takes others along, which then say that it is gone."""
    killed = [rank for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM]
    failed = [rank for rank, code in codes.items() if code > 0]
    rank = min(killed or failed or codes)
    code = codes[rank]
    if code < 0:
        number = signal.Signals(-code)
        how = f"was killed by {number.name} (signal {number.value})"
        how += ", as the system does when memory runs out" if number is signal.SIGKILL else ""
    else:
        how = f"ended with exit code {code}; what it said stands above"
    again = "" if max_restarts == 0 else f", after {max_restarts} restart{'s' * (max_restarts > 1)}"
    return f"rank {rank} of the run {how}{again}; the same command goes on from the newest checkpoint"


def check_gpus(nproc: int, option: str) -> None:
    """PilekitError, which names the option, if the machine has GPUs, but not one for each of `nproc` ranks."""
    import torch

    gpus = torch.cuda.device_count()
    if 0 < gpus < nproc:
        raise PilekitError(
            f"{option} {nproc}: this machine has {gpus} GPU{'s' * (gpus > 1)}, and each rank needs one; start at most "
            f"{gpus}, or set CUDA_VISIBLE_DEVICES= to compute on the CPU"
        )


def rank_environment(nproc: int) -> dict[str, str]:
    """What the environment of each of `nproc` ranks on this machine says of threads and of the way to each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    settings = {"OMP_NUM_THREADS": str(max(1, cores // nproc))}
    if sys.platform == "linux":
        settings["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the machine's name resolves to
    return {name: os.environ.get(name) or value for name, value in settings.items()}


@contextmanager
def _inherited(settings: Mapping[str, str]) -> Iterator[None]:
    """Put them into this process's environment, which its children inherit."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """No log lines of torch's launcher: what it has to say, `launch` says."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    loggers = [logging.getLogger(name) for name in names]
    disabled = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, before in zip(loggers, disabled, strict=True):
            logger.disabled = before
