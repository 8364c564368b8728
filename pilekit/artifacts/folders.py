"""The folders that pilekit writes into: the cache folder, the room on a disk, and what no folder for output may be.

A URL is no folder. A folder that is a link leads elsewhere: files written through it land there.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from pilekit.errors import PilekitError


def cache_folder() -> Path:
    """`$PILEKIT_CACHE`, else `$XDG_CACHE_HOME/pilekit`, else `~/.cache/pilekit`; it may not exist yet."""
    if named := os.environ.get("PILEKIT_CACHE"):
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # The XDG specification: ignore a relative path.
        return Path(shared) / "pilekit"
    try:
        return Path.home() / ".cache" / "pilekit"
    except RuntimeError as error:
        raise PilekitError("there is no home folder to keep a cache in; set $PILEKIT_CACHE to a folder") from error


def check_free_disk(folder: Path, needed: int, step: str) -> None:
    """Raise `PilekitError` if the disk of `folder` has fewer free bytes than `step` needs."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        from pilekit.display.fitted_table import rounded_bytes

        raise PilekitError(
            f"{folder}: {step} needs about {rounded_bytes(needed)}, the disk has {rounded_bytes(free)} "
            "free; make room, or name a folder on another disk with --out"
        )


def bytes_below(folder: Path) -> int:
    """The bytes of the files in `folder` and its subfolders; workers of a killed process may remove some meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def make_folder(folder: Path) -> None:
    """Make a folder for output; OSError if its name is a URL of an object store."""
    if folder.parts and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+:", folder.parts[0]):
        raise OSError(errno.EINVAL, "is a URL; give a folder of a file system, and copy the result afterwards")
    folder.mkdir(parents=True, exist_ok=True)


def refuse_linked_folders(*folders: Path) -> None:
    """Raise PilekitError if a folder is a link: files written through it land elsewhere."""
    for path in folders:
        if path.is_symlink():
            raise PilekitError(f"{path}: is a link, and nothing is written through it; remove it")
