"""Processes that are killed while they save: the newest good checkpoint is always found. See killing.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(900)


def kills(*arguments: str) -> int:
    memory = Path("/dev/shm")  # a kill leaves the same on any disk, and flushing a real one is slow
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        command = [sys.executable, "-m", "tests.train.checkpoint.killing", arguments[0], folder, *arguments[1:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=840
        )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_killed_at_random_moments() -> None:
    assert kills("random", "4") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "at_least"),
    [(["moments"], 60), (["twice"], 500), (["random", "100"], 100), (["ranks", "2"], 25)],
)
def test_killed_at_every_file_operation(arguments: list[str], at_least: int) -> None:
    assert kills(*arguments) >= at_least
