"""A disk that is soon full: a file system in memory with a limit, or a limit on files if none may be mounted."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class SmallDisk:
    """`path`: a folder that takes few bytes; `limit` goes to `subprocess.run(..., preexec_fn=disk.limit)`."""

    path: Path
    limit: Callable[[], None] | None

    def grow(self) -> None:
        """Make room: all further writes succeed."""
        if self.limit is None:
            subprocess.run(["mount", "-o", "remount,size=1g", str(self.path)], check=True)
        self.limit = None


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[SmallDisk]:
    """A folder at `path` whose files have `size` bytes together; without root, each file has a quarter of that.

    In both cases the kernel refuses writes of processes that run under `limit`.
    """
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield SmallDisk(path, None if mounted else lambda: _limit_files(size // 4))
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)


def _limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file can grow past `size` bytes, as on a full disk: writing fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
