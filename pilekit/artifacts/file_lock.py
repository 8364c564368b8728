"""A lock between processes: a file that is locked while a block runs and removed afterwards.

The kernel holds the lock (flock), so it ends with its holder: a killed process leaves the file but no lock. The holder
removes the file, so a process that opened it earlier may lock a file that has no name any more while another process
creates a new one. A lock therefore counts only if the name still leads to the locked file.

A forked worker closes its copies of the locks. Otherwise it would hold a lock for a moment after its parent was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilekit.artifacts.folders import make_folder
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, shortened

POLL_SECONDS = 0.05
TOLD_AFTER_SECONDS = 1.5
_held: set[int] = set()
"""The descriptors of the locks that this process holds."""


def _close_copies() -> None:
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_copies)


@contextmanager
def locked(
    path: Path, *, wait: bool = True, waiting: Callable[[], None] | None = None, shared: bool = False
) -> Iterator[None]:
    """Hold the lock whose file is `path` while the block runs; creates the folder if it is missing.

    wait      wait until another process releases the lock; False: raise `PilekitError` if another process holds it
    waiting   called once, after waiting for 1.5 seconds
    shared    others may share the lock; the next holder that does not share it removes the file

    Raises `PilekitError` if the file cannot be created. On a file system without locks, every process gets the lock.
    """
    file = _acquire(path, wait, waiting, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    _held.add(file)
    try:
        yield
    finally:
        if file in _held:  # Not in a forked process, which holds no lock.
            _held.remove(file)
            if not shared:
                with suppress(OSError):
                    path.unlink()
            os.close(file)


def _acquire(path: Path, wait: bool, waiting: Callable[[], None] | None, kind: int) -> int:
    """The descriptor of the locked file."""
    tell_at = time.monotonic() + TOLD_AFTER_SECONDS
    while True:
        try:
            make_folder(path.parent)
            file = open_own(path)
        except OSError as error:
            why = shortened(error.strerror or str(error), 200)
            raise PilekitError(f"{path}: cannot be made: {why}") from error
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(file)):
                    return file
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return file  # the file system has no locks
            if not wait:
                os.close(file)
                raise PilekitError(f"{path}: another process holds this lock; wait until it is done") from error
            if waiting is not None and time.monotonic() >= tell_at:
                waiting()
                waiting = None
            time.sleep(POLL_SECONDS)
        os.close(file)
