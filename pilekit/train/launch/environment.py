"""The environment of a rank: its launcher (none, pilekit, torchrun or Slurm), its device, threads, and how ranks talk.

`srun pilekit train ...` starts one process per task. Slurm numbers them in variables of its own, which `adopt_slurm`
translates into those of torchrun. Tasks that torchrun or pilekit has started keep their variables.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from pilekit.errors import PilekitError, counted

if TYPE_CHECKING:
    from pilekit.workers.ranks import Ranks  # imports torch, which takes seconds

LAUNCHER = "PILEKIT_LAUNCHER"
"""In the environment of ranks that `launch` started: the launcher's process number."""
_FIRST_HOST = re.compile(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?")
"""The first host of a list: node03 of "node[03-05,07],login1"."""


def adopt_slurm() -> None:
    """In a task of `srun` with several tasks, set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Variables that are set already stay. In a process that is a rank already, nothing is done.
    """
    variables = os.environ
    if variables.get("RANK") or variables.get("SLURM_STEP_NUM_TASKS", "1") == "1" or not variables.get("SLURM_PROCID"):
        return
    host = _FIRST_HOST.match(variables.get("SLURM_STEP_NODELIST", ""))
    job = int("".join(filter(str.isdecimal, variables.get("SLURM_JOB_ID", ""))) or 0)
    for name, value in {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": variables.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": "".join(filter(None, host.groups())) if host else "localhost",
        # The same for all tasks of a job, another for another job, below the ports that systems give to any process.
        "MASTER_PORT": str(20_000 + job % 12_000),
    }.items():
        variables.setdefault(name, value)


def describe_ranks(ranks: Ranks) -> str:
    """One line: the number of ranks, their launcher, rank 0's device, and how the ranks talk."""
    import torch
    from torch import distributed as dist

    is_gpu = ranks.device.type == "cuda"
    device = f"cuda ({torch.cuda.get_device_name(ranks.device)})" if is_gpu else ranks.device.type
    if not is_gpu and torch.backends.mps.is_available():
        device += " (mps cannot share a model over ranks, and is not used)"
    if ranks.world_size == 1:
        return f"1 rank, on {device}"
    # The variable that each launcher sets; the innermost launcher first.
    signs = {"pilekit": LAUNCHER, "torchrun": "TORCHELASTIC_RUN_ID", "Slurm": "SLURM_STEP_NUM_TASKS"}
    by = next((name for name, sign in signs.items() if sign in os.environ), "its environment")
    talk = "nccl, and gloo between steps" if "nccl" in str(dist.get_backend_config()) else "gloo"
    return f"{counted(ranks.world_size, 'rank')} started by {by}, on {device}; they talk by {talk}"


def check_gpus(nproc: int, option: str) -> None:
    """Raise PilekitError, naming `option`, if the machine has GPUs but not one for each of `nproc` ranks."""
    import torch

    gpus = torch.cuda.device_count()
    if 0 < gpus < nproc:
        raise PilekitError(
            f"{option} {nproc}: this machine has {counted(gpus, 'GPU')}, and each rank needs one; start at most "
            f"{gpus}, or set CUDA_VISIBLE_DEVICES= to compute on the CPU"
        )


def rank_environment(nproc: int) -> dict[str, str]:
    """Environment variables for `nproc` ranks on this machine: threads, and the network interface between them."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Threads of a rank on a GPU would only wait for each other.
    threads = 1 if torch.cuda.is_available() else max(1, cores // nproc)
    settings = {"OMP_NUM_THREADS": str(threads)}
    if sys.platform == "linux":
        settings["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the machine's name resolves to
    return {name: os.environ.get(name) or value for name, value in settings.items()}
