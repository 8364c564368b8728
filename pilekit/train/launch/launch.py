"""`launch`: a run in several processes of this machine, restarted when one of them dies.

Each process is a rank: it runs `python -m pilekit.train` with torchrun's environment, and all meet in a store of the
launcher. If one fails, the launcher ends the others. Ctrl-C and SIGTERM are only passed on, because a rank may need any
time to save its checkpoint. Each rank leads its own session, so a terminal's Ctrl-C reaches it once, through the
launcher.

If the launcher is killed, the kernel sends its ranks a SIGTERM (`end_with_launcher`); they save and end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pilekit
from pilekit.errors import PilekitError

LAUNCHER = "PILEKIT_LAUNCHER"
"""In the environment of ranks that `launch` started: the launcher's process number."""

MODULE = "pilekit.train"
"""The module that a rank runs."""

GRACE_SECONDS = 30.0
"""Time for the other ranks to end after one has failed."""

_PR_SET_PDEATHSIG = 1


def launch(nproc: int, arguments: list[str], max_restarts: int = 0) -> int:
    """Run `python -m pilekit.train` with `arguments` in `nproc` ranks of this machine; returns the exit code.

    max_restarts   how often all ranks start again after one has failed

    Returns 0 if all ranks ended with 0, also when SIGTERM asked them to save and stop; 130 after Ctrl-C. The cores are
    divided among the ranks as threads, unless OMP_NUM_THREADS is set. Raises PilekitError if the machine has too few
    GPUs, and if a rank failed for the last time. Only a main thread whose process ends afterwards may call this.
    """
    received: list[int] = []
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for started in ranks:
            started.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    check_gpus(nproc, "--nproc-per-node")
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # In a store of this process, no other program can take the port between its choice and its use.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = rank_environment(nproc) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    job |= {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    job |= {LAUNCHER: str(os.getpid()), "TORCHELASTIC_MAX_RESTARTS": str(max_restarts)}
    # A file of the current folder must not shadow a module of Python or pilekit.
    safe_path = [] if Path.cwd() == Path(pilekit.__file__).parents[1] else ["-P"]
    command = [sys.executable, *safe_path, "-m", MODULE, *arguments]
    codes: dict[int, int] = {}
    for attempt in range(max_restarts + 1):
        ranks.clear()
        job["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        for rank in range(nproc):
            if received:
                break
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=os.environ | job | own, start_new_session=True))
        if received:  # the newest rank may have missed the signal
            for started in ranks:
                started.terminate()
        codes = _first_failures(ranks)
        if not codes or received:
            break
    stopped = (130, -signal.SIGINT, -signal.SIGTERM)  # a rank that had nothing to save yet
    if codes and not (received and all(code in stopped for code in codes.values())):
        raise PilekitError(_failure(codes, max_restarts))
    return 130 if signal.SIGINT in received else 0


def _first_failures(ranks: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Wait for all ranks, and end the others if some fail; returns the exit codes of the ranks that failed first."""
    codes: dict[int, int] = {}
    while not codes and any(rank.returncode is None for rank in ranks):
        time.sleep(0.1)
        codes = {number: code for number, rank in enumerate(ranks) if (code := rank.poll())}
    for rank in ranks:
        rank.terminate()
    end = time.monotonic() + GRACE_SECONDS
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, end - time.monotonic()))
        rank.kill()
        rank.wait()
    return codes


def end_with_launcher() -> None:
    """In a rank that `launch` started, on Linux: ask for a SIGTERM to this process when the launcher ends."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it ended before
        raise SystemExit(0)


def _failure(codes: Mapping[int, int], max_restarts: int) -> str:
    """One line for the exit codes by rank. A rank that dies takes others along, so a killed rank is named first."""
    killed = [rank for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM]
    failed = [rank for rank, code in codes.items() if code > 0]
    rank = min(killed or failed or codes)
    code = codes[rank]
    if code < 0:
        number = signal.Signals(-code)
        how = f"was killed by {number.name} (signal {number.value})"
        how += ", as the system does when memory runs out" if number is signal.SIGKILL else ""
    else:
        how = f"ended with exit code {code}; see its message above"
    restarts = "" if max_restarts == 0 else f", after {max_restarts} restart{'s' * (max_restarts > 1)}"
    return f"rank {rank} of the run {how}{restarts}; the same command resumes from the newest checkpoint"


def check_gpus(nproc: int, option: str) -> None:
    """Raise PilekitError, naming `option`, if the machine has GPUs but not one for each of `nproc` ranks."""
    import torch

    gpus = torch.cuda.device_count()
    if 0 < gpus < nproc:
        raise PilekitError(
            f"{option} {nproc}: this machine has {gpus} GPU{'s' * (gpus > 1)}, and each rank needs one; start at most "
            f"{gpus}, or set CUDA_VISIBLE_DEVICES= to compute on the CPU"
        )


def rank_environment(nproc: int) -> dict[str, str]:
    """Environment variables for `nproc` ranks on this machine: threads, and the network interface between them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    settings = {"OMP_NUM_THREADS": str(max(1, cores // nproc))}
    if sys.platform == "linux":
        settings["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the machine's name resolves to
    return {name: os.environ.get(name) or value for name, value in settings.items()}
