"""Processes that are killed while they save: what is left is always the newest good checkpoint. See killing.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folder() -> Iterator[str]:
    """In memory where there is such a place: a kill leaves the same on any disk, and flushing a real one is slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield name


def kills(*arguments: str) -> int:
    command = [sys.executable, "-m", "tests.train.killing", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=840)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_killed_at_every_file_operation(folder: str) -> None:
    assert kills("moments", folder) > 60


def test_killed_at_random_moments(folder: str) -> None:
    assert kills("random", folder, "4") == 4


@pytest.mark.slow
def test_one_of_two_ranks_killed_at_every_second_file_operation(folder: str) -> None:
    assert kills("ranks", folder, "2") > 25


@pytest.mark.slow
def test_killed_at_random_moments_many_times(folder: str) -> None:
    assert kills("random", folder, "100") == 100


@pytest.mark.slow
def test_killed_while_saving_and_again_while_resuming(folder: str) -> None:
    assert kills("twice", folder) > 500
