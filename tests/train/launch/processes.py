"""Commands that start ranks as a user does, each in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.process_groups import ROOT
from tests.stopping import is_there

SECONDS = 240.0
"""A command that takes longer than this fails its test."""
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
MARK = "PILEKIT_FOLDER_OF_THIS_TEST"


@contextmanager
def running(command: Sequence[str], folder: Path, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """The command in `folder`, on the CPU, with these variables; at the end it and its ranks are killed."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), MARK: str(folder), **settings}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            for pid in ranks_in(folder).values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def ranks_in(folder: Path) -> dict[int, int]:
    """Rank to process, for all running ranks of the command in `folder`."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError, ValueError):
            variables = dict(line.split("=", 1) for line in path.read_text().split("\0") if "=" in line)
            pid = int(path.parent.name)
            if variables.get(MARK) == str(folder) and "RANK" in variables and is_there(pid):
                found[int(variables["RANK"])] = pid
    return found
