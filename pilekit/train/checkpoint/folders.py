"""The folder of a run's checkpoints: what its names mean, and how the newest whole one is found again.

    RUN/checkpoints/step-N/     the state between two steps (files.py)
    RUN/latest                  a text file: `checkpoints/step-N`; for people and scripts, nothing here relies on it

A save writes `step-N.partial`, flushes it to disk, renames it, and only then removes older checkpoints. From the
renaming on the checkpoint is there, so a failure after it is a warning. A process that was killed may leave a
`step-N.partial`: the next call finishes it if all of it is there, else removes it. A checkpoint that does not verify is
named and passed over, and the next save removes it. An older one whose removal was interrupted does not verify either.

So at any moment the newest good checkpoint is found, even where only one is kept and the same step is saved again. Only
rank 0 changes anything here, and a run has one job that writes (its folder is locked), so a `.partial` is a leftover.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, visible
from pilekit.train.checkpoint.files import Damaged, State, verify

logger = logging.getLogger(__name__)

PARTIAL = ".partial"
_NAME = re.compile(r"step-(0|[1-9][0-9]*)")


def steps_in(checkpoints: Path, ending: str = "") -> list[int]:
    """The steps of all folders `step-N<ending>`, increasing; `checkpoints` need not exist, other names are ignored."""
    try:
        names = os.listdir(checkpoints)  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PilekitError(f"{visible(str(checkpoints))}: cannot be read: {error.strerror}") from error
    matches = (_NAME.fullmatch(name.removesuffix(ending)) for name in names if name.endswith(ending))
    return sorted(int(match[1]) for match in matches if match)


def find_checkpoint(
    checkpoints: Path, check: Callable[[Path], State] = verify, steps: Sequence[int] | None = None
) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that verifies, and the damaged ones that are newer with the reasons; changes nothing.

    None if there is none at all. `check` proves a folder or raises `Damaged`. `steps` are those of `steps_in`, where
    ranks must go through the same folders together. PilekitError if there are checkpoints and none is good.
    """
    damaged: dict[Path, str] = {}
    for step in reversed(steps_in(checkpoints) if steps is None else steps):
        folder = checkpoints / f"step-{step}"
        try:
            state = check(folder)
            if state.progress.step != step:
                raise Damaged(f"it holds step {state.progress.step}")
        except Damaged as damage:
            damaged[folder] = str(damage)
        else:
            return folder, damaged
    if damaged:
        newest, reason = next(iter(damaged.items()))
        raise PilekitError(
            f"{visible(str(checkpoints))}: no checkpoint in it is good, {newest.name} for one is damaged ({reason}); "
            "put back a good copy, or remove the folder to train from the first step again"
        )
    return None, {}


def settle(checkpoints: Path) -> None:
    """Finish or remove a save that was killed; raises OSError."""
    for step in steps_in(checkpoints, PARTIAL):
        partial = checkpoints / f"step-{step}{PARTIAL}"
        try:
            verify(partial)
        except Damaged:
            remove(partial)
        else:
            put_in_place(partial, checkpoints / f"step-{step}")


def put_in_place(partial: Path, final: Path) -> None:
    """Make a whole `.partial` the checkpoint; killed in between, `settle` does the rest, since it is still whole."""
    remove(final)
    partial.rename(final)
    with suppress(OSError):  # too many files are open, for one: the name is there, whatever a cut of power would leave
        flush(final.parent)


def point_to(latest: Path, folder: Path) -> None:
    """Make `latest` name the folder, a checkpoint: as seen from its own, or whole if that is elsewhere.

    A warning where that cannot be done: the checkpoint is found without it.
    """
    inside = folder.is_relative_to(latest.parent)
    text = os.fsencode(f"{folder.relative_to(latest.parent) if inside else folder.absolute()}\n")
    if latest.is_symlink():  # never write where it leads to
        remove(latest)
    with suppress(OSError):
        if latest.read_bytes() == text:
            return
    try:
        with write_atomically(latest) as file:
            file.write(text)
    except PilekitError as error:
        logger.warning("%s; it should name %s, which is whole and is found without it", error, visible(str(folder)))


def prune(checkpoints: Path, saved: int, keep_last: int, damaged: Iterable[Path]) -> None:
    """Remove the `damaged` ones, and all others but the `keep_last` newest and the one of step `saved`.

    A warning for a folder that cannot be removed.
    """
    for folder in damaged:
        if folder.name != f"step-{saved}":
            remove(folder)
    try:
        steps = steps_in(checkpoints)
    except PilekitError as error:
        logger.warning("%s; older checkpoints are not removed", error)
        return
    for step in steps[:-keep_last]:
        if step != saved:
            remove(checkpoints / f"step-{step}")


def remove(path: Path) -> None:
    """Remove a folder, a file or a link; a warning where that cannot be done."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s; remove it yourself", visible(str(path)), error.strerror)


def flush(folder: Path) -> None:
    """Bring the names in a folder to the disk, so that a cut of power leaves them in the order they were made."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot do it
            os.fsync(handle)
    finally:
        os.close(handle)
