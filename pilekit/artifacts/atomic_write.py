"""Files that are either complete or not there.

Output is written beside its final name, as `<name>.<random>.partial`, flushed to disk, and renamed when complete. Such
a name is never taken for a shard. Each writer has a file of its own, so two writers of one path cannot mix their bytes:
the last to finish wins. A writer holds a lock on its file as long as it lives; the next attempt at the same path
removes the files that nobody holds, so a killed command leaves nothing that piles up.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, visible

PARTIAL = ".partial"
_PARTIAL_SUFFIX = r"\.[0-9a-f]{8}" + re.escape(PARTIAL)


@contextmanager
def write_atomically(path: str | Path, *, follow_links: bool = False) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well, and vanishes when it does not.

    follow_links   for a path that the user named: of a symbolic link, the file it leads to is replaced, not the link

    The folder is made if it is missing. Raises `PilekitError` for a target that is no regular file, before anything is
    written, and where it cannot be written, a full disk included.
    """
    check_target(path, follow_links=follow_links)
    try:
        final = Path(path).resolve() if follow_links else Path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        partial, file = _create(final)
    except (OSError, RuntimeError, ValueError) as error:  # the last two: a loop of links, a null byte
        raise _not_written(path, error) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            partial.replace(final)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            raise _not_written(path, error) from error
        raise


def final_name(name: str) -> str:
    """What the file of this name will be called when it is complete: the same, if it is no partial file."""
    return re.sub(rf"{_PARTIAL_SUFFIX}\Z", "", name)


def check_target(path: str | Path, *, follow_links: bool = False) -> None:
    """Raise `PilekitError` if `path` is something that a new file must not replace: a folder, a device, a pipe."""
    try:
        mode = Path(path).stat(follow_symlinks=follow_links).st_mode
    except (OSError, ValueError):  # nothing is there, or writing will tell why it cannot be
        return
    if stat.S_ISDIR(mode):
        raise PilekitError(f"{visible(str(path))}: is a folder; name a file in it")
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise PilekitError(f"{visible(str(path))}: is a device or a pipe, which no file can replace; name another")


def _not_written(path: str | Path, error: Exception) -> PilekitError:
    why = error.strerror if isinstance(error, OSError) else None
    return PilekitError(f"{visible(str(path))}: cannot be written: {visible(why or str(error), 200)}")


def _create(final: Path) -> tuple[Path, BinaryIO]:
    """A new file of this writer's own, locked."""
    while True:
        partial = final.with_name(f"{final.name}.{secrets.token_hex(4)}{PARTIAL}")
        file = partial.open("xb")
        _lock(file, wait=True)
        # Between its making and its locking it looked abandoned: another writer may have removed it.
        if partial.exists():
            return partial, file
        file.close()


def _remove_abandoned(final: Path) -> None:
    """Remove the partial files of `final` whose writers are dead."""
    ours = re.compile(re.escape(final.name) + _PARTIAL_SUFFIX).fullmatch
    for name in os.listdir(final.parent):  # noqa: PTH208 (a Path for each of many files takes most of the time)
        if ours(name):
            with suppress(OSError), os.fdopen(open_own(final.parent / name, os.O_RDWR), "rb+") as file:
                if _lock(file, wait=False):
                    (final.parent / name).unlink()


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock the file until it is closed; false if it is another's, or if the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
