"""Check the free disk before a long job begins, and name the folder in an error of the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilekit.errors import PilekitError


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


@contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a `PilekitError` that names the folder."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise PilekitError(f"{folder}: scratch space cannot be used: {why}") from error
