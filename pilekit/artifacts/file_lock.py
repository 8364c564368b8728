"""A lock between processes: a file that is locked while work is done, and gone afterwards.

The lock is the kernel's (flock), so it ends with its holder however that ends: a killed process leaves a file and no
lock. The file is removed by whoever holds it, which makes one race: a process that had opened it before may lock a file
that has no name any more, while another makes a new one. So a lock counts only if the name still leads to the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, visible

POLL_SECONDS = 0.05
TOLD_AFTER_SECONDS = 1.5


@contextmanager
def locked(path: Path, *, wait: bool = True, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock whose file is `path` while the block runs; the folder is made if it is missing.

    wait      until another process lets go of it; False: `PilekitError` if one holds it
    waiting   called once, when that has taken more than a moment

    `PilekitError` where the file cannot be made. On a file system without locks everyone holds it.
    """
    file = _hold(path, wait, waiting)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def _hold(path: Path, wait: bool, waiting: Callable[[], None] | None) -> int:
    """The descriptor of the locked file."""
    tell_at = time.monotonic() + TOLD_AFTER_SECONDS
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_own(path)
        except OSError as error:
            why = visible(error.strerror or str(error), 200)
            raise PilekitError(f"{visible(str(path))}: cannot be made: {why}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _leads_to(path, file):
                return file
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return file
            if not wait:
                os.close(file)
                raise PilekitError(
                    f"{visible(str(path))}: another process holds this lock; wait until it is done"
                ) from error
            if waiting is not None and time.monotonic() >= tell_at:
                waiting()
                waiting = None
            time.sleep(POLL_SECONDS)
        os.close(file)


def _leads_to(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False
