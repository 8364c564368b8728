"""Processes that are killed while they save: the newest good checkpoint is always found. See killing.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.process_groups import ProcessGroups

KILLING = "from tests.train.checkpoint.killing import main\nmain()"


@pytest.mark.parametrize(
    ("what", "every", "at_least"),
    [
        ("moments", 7, 12),
        pytest.param("moments", 1, 90, marks=pytest.mark.slow),
        pytest.param("ranks", 2, 25, marks=pytest.mark.slow),
    ],
)
def test_killed_at_file_operations(process_group: ProcessGroups, what: str, every: int, at_least: int) -> None:
    memory = Path("/dev/shm")  # a kill leaves the same on any disk, and flushing a real one is slow
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        code, stdout, stderr = process_group.script(KILLING, what, folder, str(every))
    assert code == 0, stderr
    assert int(stdout) >= at_least
