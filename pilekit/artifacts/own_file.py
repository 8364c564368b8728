"""Open pilekit's own files in folders from elsewhere, which may hold a link or a pipe under the same name.

An archive may contain a link, a pipe or a hard link with the name of a lock, a note or a cache file. These functions
follow no link, wait for no pipe, and write into no other file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path


def open_own(path: str | Path, flags: int = os.O_RDWR | os.O_CREAT, *, alone: bool = False) -> int:
    """Open the file `path` and return its descriptor.

    Removes a symbolic link at `path` first. Raises OSError for a pipe or a device, and where `os.open` raises it.

    alone   for a file that is written in place: raise OSError if it has another name too (a hard link)
    """
    while True:
        try:
            file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            break
        except OSError as error:
            if error.errno != errno.ELOOP or not Path(path).is_symlink():
                raise
            Path(path).unlink(missing_ok=True)
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode) and not (alone and about.st_nlink > 1):
        return file
    os.close(file)
    reason = "has another name too (a hard link)" if stat.S_ISREG(about.st_mode) else "is a device or a pipe"
    raise OSError(errno.EINVAL, f"{reason}, remove it", str(path))


@contextmanager
def reading_own(path: str | Path) -> Iterator[BufferedReader]:
    """The file `path`, open for reading; raises OSError for a pipe or a device, which could block or have no end."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is a device or a pipe, remove it", str(path))
        yield opened


def read_own(path: str | Path) -> bytes:
    """All bytes of the file `path`; raises OSError for a pipe or a device."""
    with reading_own(path) as file:
        return file.read()
