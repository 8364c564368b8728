"""Real processes, stopped in the middle of their work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def tree(folder: Path) -> dict[str, bytes]:
    """The content of every file below `folder`."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def partial_files(folder: Path) -> list[Path]:
    """The unfinished files below `folder`; unlike `rglob`, `os.walk` passes over a folder that is removed meanwhile."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names if name.endswith(".partial")]


def stop_when(
    arguments: list[str], moment: Callable[[], bool], stop: Callable[[subprocess.Popen[str]], None]
) -> tuple[int, str]:
    """Run a command, `stop` it at the `moment`, and return its exit code and stderr."""
    with subprocess.Popen(
        arguments,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_interrupts,
    ) as process:
        while process.poll() is None and not moment():
            time.sleep(0.001)
        stop(process)
        _, errors = process.communicate(timeout=240)
    return process.returncode, errors


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """Whether the process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended between open and read
        return False


def _hear_interrupts() -> None:
    """Handle SIGINT again: a process that a shell starts in the background ignores it, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the process without a chance to clean up; its worker processes notice only afterwards."""
    process.kill()


def interrupt(process: subprocess.Popen[str]) -> None:
    """Send Ctrl-C as a terminal does: to all processes of the session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


def is_sound(folder: Path, expected: dict[str, bytes]) -> bool:
    """Whether every output file under its final name has the expected content; files may be missing, but not all."""
    found = {
        name: content
        for name, content in (tree(folder) if folder.exists() else {}).items()
        if not name.endswith((".partial", ".lock")) and not name.startswith((".", "pilekit.json"))
    }
    for name, content in found.items():
        assert content == expected[name]
    return 0 < len(found) < len(expected) - 1
