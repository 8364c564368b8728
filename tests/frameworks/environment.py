"""The real frameworks, in one virtual environment of their own, and scripts run in it.

It is made on top of the one that runs the tests, so pilekit is the working tree's and torch the same build.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from pilekit.artifacts.file_lock import locked
from tests.benchmarks.peers import BENCH, peer_environment
from tests.ports import free_port
from tests.process_groups import ROOT, RankServer

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
    # DeepSpeed compiles a little, into the environment, so it is removed with it.
    "TORCH_EXTENSIONS_DIR": str(BENCH / "frameworks" / "torch-extensions"),
}


COMPILED = Path(SETTINGS["TORCH_EXTENSIONS_DIR"])
COMPILE = """
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
ShareMemCommBuilder().load()
"""


def frameworks_python() -> Path:
    """The Python of the environment, made on first use."""
    # One process makes it; another one of the tests waits.
    with pytest.MonkeyPatch.context() as patch, locked(BENCH / "frameworks.lock"):
        patch.setenv("DS_BUILD_OPS", "0")
        patch.setenv("DS_ACCELERATOR", "cpu")
        python = peer_environment(
            "frameworks", REQUIREMENTS, ["--constraint", str(ROOT / "constraints.txt")], on_top=True
        )
        # A killed compilation leaves torch's lock, on which every later one waits forever: it is begun again, from
        # nothing, and never while a test runs.
        if not (COMPILED / "done").exists():
            shutil.rmtree(COMPILED, ignore_errors=True)
            # With the tests' PATH: another ninja would compile it again.
            subprocess.run([python, "-c", COMPILE], env={**os.environ, **SETTINGS}, check=True)
            (COMPILED / "done").touch()
        return python


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it wrote on either stream."""

    code: int
    text: str

    def well(self) -> str:
        """What it wrote, if it ended with 0."""
        assert self.code == 0, self.text[-4000:]
        return self.text


AS_PYTHON_DOES = """
import runpy, sys
if sys.argv[0] == "-m":
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@cache
def _server(python: Path) -> RankServer:
    server = RankServer(python, **SETTINGS)
    atexit.register(server.close)
    return server


def launch(python: Path, *script: str | Path, folder: Path, ranks: int, timeout: float = 480, **settings: str) -> Ended:
    """Run a script in `folder`, in ranks with the environment of torchrun's; AssertionError if they had to be killed.

    The ranks are forks of a process that has imported torch, transformers and pilekit, which takes longer than most
    scripts. As under torchrun, the first rank that fails ends the others.
    """
    server, place = _server(python), {"WATCHED_SECONDS": str(timeout - 20)}  # report a hang before it is killed
    if ranks > 1:
        place |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
        place |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "tests"}
    with tempfile.NamedTemporaryFile("r", errors="replace") as output:
        path, arguments, end = Path(output.name), [str(part) for part in script], time.monotonic() + timeout
        running, codes = set[int](), set[int]()
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            running.add(server.start_script(AS_PYTHON_DOES, arguments, folder, path, path, **settings, **place, **own))
        started = set(running)
        while running and not any(codes) and time.monotonic() < end:
            time.sleep(0.05)
            ended = {pid: code for pid in running if (code := server.exit_code(pid, wait=False)) is not None}
            running -= ended.keys()
            codes |= set(ended.values())
        hung = bool(running) and not any(codes)
        for pid in started:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # its workers too
        for pid in running:
            server.exit_code(pid, wait=True)
        text = output.read()
    assert not hung, f"{script} did not end within {timeout:g} s:\n{text[-6000:]}"
    return Ended(max(codes, key=abs), text)
