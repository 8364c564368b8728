"""The real frameworks, in one virtual environment of their own, and scripts run in it.

It is made on top of the one that runs the tests, so pilekit is the working tree's and torch the same build.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilekit.artifacts.file_lock import locked
from tests.benchmarks.peers import BENCH, peer_environment

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = [
    "torch==2.13.0",
    "torchdata==0.11.0",
    "accelerate==1.15.0",
    "lightning==2.6.6",
    "deepspeed==0.19.8",
]

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "DS_ACCELERATOR": "cpu",
    # DeepSpeed compiles a little on first use: into the environment, so once, and removed with it.
    "TORCH_EXTENSIONS_DIR": str(BENCH / "frameworks" / "torch-extensions"),
}


def frameworks_python() -> Path:
    """The Python of the environment, made on first use."""
    # One process makes it; another one of the tests waits.
    with pytest.MonkeyPatch.context() as patch, locked(BENCH / "frameworks.lock"):
        patch.setenv("DS_BUILD_OPS", "0")
        patch.setenv("DS_ACCELERATOR", "cpu")
        for lock in Path(SETTINGS["TORCH_EXTENSIONS_DIR"]).glob("*/lock"):
            lock.unlink()  # left by a killed compilation; every later compilation would wait for it forever
        return peer_environment(
            "frameworks", REQUIREMENTS, ["--constraint", str(ROOT / "constraints.txt")], on_top=True
        )


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it wrote on either stream."""

    code: int
    text: str


def launch(python: Path, *script: str | Path, folder: Path, ranks: int, timeout: float = 480, **settings: str) -> Ended:
    """Run a script in `folder`, by torchrun if there are several ranks; AssertionError if it had to be killed."""
    command = [str(python)]
    if ranks > 1:
        command += [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--local-addr=localhost",
            f"--nproc-per-node={ranks}",
        ]
    unset = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in unset},
        **SETTINGS,
        **settings,
        "WATCHED_SECONDS": str(timeout - 20),  # report where the script hangs before it is killed
    }
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [*command, *map(str, script)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ended = True
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            ended = False
            # Ranks and their workers too: torchrun gives each rank a session of its own.
            for pid in [*_descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
    assert ended, f"{script} did not end within {timeout:g} s:\n{text[-6000:]}"
    return Ended(process.returncode, text)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, open_ones = [], [pid]
    while open_ones:
        children = parents.get(open_ones.pop(), [])
        found += children
        open_ones += children
    return found
