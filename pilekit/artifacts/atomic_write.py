"""Files that are either complete or absent.

Output is written to `<name>.<random>.partial` beside its final name, flushed to disk, and renamed when complete. A
search for shards ignores such names. Every writer has a partial file of its own, so two writers of one path cannot mix
their bytes: the last one to finish wins. A writer locks its partial file. The next writer of the same path removes the
partial files that nobody locks, so killed commands leave nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pilekit.artifacts.folders import make_folder
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, shortened

PARTIAL = ".partial"
_PARTIAL_SUFFIX = r"\.[0-9a-f]{8}" + re.escape(PARTIAL)

_listed: dict[Path, tuple[dict[str, list[str]], int]] = {}
"""By folder: its partial files when it was last listed, and the writes until it is listed again."""


@contextmanager
def write_atomically(path: str | Path, *, follow_links: bool = False, flushed: bool = True) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block succeeds, and vanishes when it fails.

    follow_links   for a path that the user typed: write to the target of a symbolic link, do not replace the link
    flushed        False: for a small file of which there are many, and which a power cut may take. Some disks take
                   10 ms to flush a file

    Creates the folder if it is missing. Raises `PilekitError` at once if `path` is not a regular file, and later if
    writing fails, for example on a full disk.
    """
    check_target(path, follow_links=follow_links)
    try:
        final = Path(path).resolve() if follow_links else Path(path)
        make_folder(final.parent)
        _remove_abandoned(final)
        partial, file = _create(final)
    except (OSError, RuntimeError, ValueError) as error:  # the last two: a loop of links, a null byte
        raise _not_written(path, error) from error
    try:
        with file:
            yield file
            file.flush()
            if flushed:
                os.fsync(file.fileno())
            partial.replace(final)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            raise _not_written(path, error) from error
        raise


def write_json(path: Path, value: Any) -> Path:
    """Write a value as indented JSON; returns the path."""
    with write_atomically(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    return path


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, so that a power cut keeps their order.

    Raises OSError, but not for a folder on a network file system that cannot flush folders.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if path.is_dir() else nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def final_name(name: str) -> str:
    """The name that a partial file gets when it is complete; other names are returned unchanged."""
    return re.sub(rf"{_PARTIAL_SUFFIX}\Z", "", name)


def check_target(path: str | Path, *, follow_links: bool = False, inputs: Iterable[str | Path] = ()) -> None:
    """Raise `PilekitError` if a new file must not replace `path`: a folder, a device, a pipe, or one of `inputs`."""
    try:
        mode = Path(path).stat(follow_symlinks=follow_links).st_mode
    except NotADirectoryError as error:
        raise _not_written(path, error) from error
    except (OSError, ValueError):  # nothing is there, or writing will report the reason
        return
    if stat.S_ISDIR(mode):
        raise PilekitError(f"{path}: is a folder; name a file in it")
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise PilekitError(f"{path}: is a device or a pipe, which no file can replace; name another")
    for source in inputs:
        with suppress(OSError, ValueError):  # a URL, standard input
            if Path(path).samefile(source):
                raise PilekitError(f"{path}: is an input and the output; name another file with --out")


def _not_written(path: str | Path, error: Exception) -> PilekitError:
    why = error.strerror if isinstance(error, OSError) else None
    if re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # numpy's words
        why = "the disk is full, or a file may not grow so long"
    return PilekitError(f"{path}: cannot be written: {shortened(why or str(error), 200)}")


def _create(final: Path) -> tuple[Path, BinaryIO]:
    """Create a partial file for `final` and lock it."""
    while True:
        partial = final.with_name(f"{final.name}.{secrets.token_hex(4)}{PARTIAL}")
        file = partial.open("xb")
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        # Before the lock was taken, another writer may have removed the file as abandoned.
        if partial.exists():
            return partial, file
        file.close()


def _remove_abandoned(final: Path) -> None:
    """Remove the partial files of `final` whose writers are dead."""
    for name in _partial_files(final.parent).get(final.name, ()):
        # A lock that another process holds, or a file system without locks, raises OSError.
        with suppress(OSError), os.fdopen(open_own(final.parent / name, os.O_RDWR), "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (final.parent / name).unlink()


def _partial_files(folder: Path) -> dict[str, list[str]]:
    """The names of the folder's partial files, by their final names.

    A folder of n names is listed before every n/64-th write only, because listing it for each of n files takes n^2
    steps: a minute for 8,000 shards. What is left by a process that dies in between, the next process removes.
    """
    folder = folder.absolute()
    partials, writes = _listed.get(folder, ({}, 0))
    if not writes:
        names = os.listdir(folder)  # noqa: PTH208 (a Path for each of many files would take most of the time)
        partials, writes = {}, len(names) // 64 + 1
        for name in names:
            if name.endswith(PARTIAL) and (final := final_name(name)) != name:
                partials.setdefault(final, []).append(name)
    _listed[folder] = partials, writes - 1
    return partials
