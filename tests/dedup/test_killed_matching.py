"""Exact copies, candidates, comparisons and decisions, killed when each of their files appears, and run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import sys
from pathlib import Path
from tests.dedup.generated import decide_generated

decide_generated(Path(sys.argv[1]), 200_000, 1 << 20)
"""
FILES = [
    "copies.bits",
    "copies.rows",
    "hot.members",
    "hot.lengths",
    "pairs.rows",
    "candidates.bits",
    "edges.json",
    "edges.rows",
    "removed.bits",
    "removals.rows",
]


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder)])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder).wait() == 0
    assert sorted(contents(folder)) == sorted(FILES)
    assert all(contents(folder).values())
    return contents(folder)


@pytest.mark.slow
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_killed_run_is_finished_by_the_next(
    tmp_path: Path, undisturbed: dict[str, bytes], name: str, complete: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    process = start(folder)
    while process.poll() is None and not any(
        found == name or (not complete and found.startswith(name))
        for found in os.listdir(folder)  # noqa: PTH208
    ):
        time.sleep(0.0005)
    process.kill()
    process.wait()
    inode = (folder / "copies.rows").stat().st_ino if (folder / "copies.rows").exists() else None
    assert start(folder).wait() == 0
    assert contents(folder) == undisturbed
    # What was finished was not done again.
    assert inode in (None, (folder / "copies.rows").stat().st_ino)
