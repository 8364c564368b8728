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


@pytest.mark.parametrize(
    ("what", "every", "at_least"),
    [
        ("moments", 7, 12),
        pytest.param("moments", 1, 90, marks=pytest.mark.slow),
        pytest.param("ranks", 2, 25, marks=pytest.mark.slow),
    ],
)
def test_killed_at_file_operations(what: str, every: int, at_least: int) -> None:
    memory = Path("/dev/shm")  # a kill leaves the same on any disk, and flushing a real one is slow
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        command = [sys.executable, "-m", "tests.train.checkpoint.killing", what, folder, str(every)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=840
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= at_least
