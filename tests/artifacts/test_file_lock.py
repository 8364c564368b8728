"""One process at a time holds the lock, and a killed process releases it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pilekit.artifacts.file_lock import locked
from pilekit.errors import PilekitError

COUNT = """
import sys
from pathlib import Path
from pilekit.artifacts.file_lock import locked
folder = Path(sys.argv[1])
for _ in range(25):
    with locked(folder / "lock"):
        count = int((folder / "count").read_text())
        (folder / "count").write_text("")
        (folder / "count").write_text(str(count + 1))
"""

HOLD = """
import os, sys, time
from pathlib import Path
from pilekit.artifacts.file_lock import locked
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        print("held", flush=True)
        time.sleep(600)
    os.wait()
"""


def test_processes_take_turns_although_each_removes_the_lock_file(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    assert (tmp_path / "count").read_text() == "75"
    assert [entry.name for entry in tmp_path.iterdir()] == ["count"]


def test_a_killed_process_holds_nothing_though_its_forked_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(PilekitError, match="lock: another process holds this lock"), locked(path, wait=False):
        pass
    process.kill()
    process.wait()
    assert path.exists()
    with locked(path, wait=False):
        os.killpg(process.pid, signal.SIGKILL)
    assert not path.exists()


def test_who_shares_a_lock_leaves_its_file_to_the_others(tmp_path: Path) -> None:
    path, alone = tmp_path / "lock", {"wait": False}
    with locked(path, **alone, shared=True):
        with locked(path, **alone, shared=True), pytest.raises(PilekitError, match="holds"), locked(path, **alone):
            pass
        assert path.exists()
        with pytest.raises(PilekitError, match="another process holds this lock"), locked(path, **alone):
            pass
    with (
        locked(path, **alone),
        pytest.raises(PilekitError, match="another process holds this lock"),
        locked(path, **alone, shared=True),
    ):
        pass
    assert not path.exists()


def test_a_waiting_process_reports_once(tmp_path: Path) -> None:
    path, told, held = tmp_path / "lock", threading.Semaphore(0), []

    def wait() -> None:
        with locked(path, waiting=told.release):
            held.append(True)

    with locked(path):
        thread = threading.Thread(target=wait)
        thread.start()
        assert told.acquire(timeout=60)
        assert not told.acquire(timeout=0.3)
        assert not held
    thread.join(60)
    assert held
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file" / "lock", tmp_path):
        with pytest.raises(PilekitError, match="cannot be made"), locked(wrong):
            pass
