"""The folder of a run's checkpoints: what its names mean, and how the newest whole one is found again.

    RUN/checkpoints/step-N/     the state between two steps (files.py)
    RUN/latest                  a text file: `checkpoints/step-N`; for people and scripts, nothing here relies on it

A save writes `step-N.partial`, flushes it to disk, renames it, and only then removes what is older. From the renaming
on the checkpoint is there, so what fails later is a warning that says what. Other names beside `step-N` are what was
going on when a process was killed, and the next call settles it:

    step-N.partial    a save; finished if all of it is there, else removed
    step-N.removed    a removal; finished
    step-N.damaged    did not verify when a run was resumed; kept until the next save succeeds, for who wants to look

So at any moment the newest good checkpoint is found, even where only one is kept and the same step is saved again. Only
rank 0 changes anything here, and a run has one job that writes (its folder is locked), which is why leftovers can be
told from work in progress.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, visible
from pilekit.train.checkpoint.files import Damaged, State, verify

logger = logging.getLogger(__name__)

PARTIAL, REMOVED, DAMAGED = ".partial", ".removed", ".damaged"
_NAME = re.compile(r"step-(0|[1-9][0-9]*)(\.partial|\.removed|\.damaged)?")


class Entry(NamedTuple):
    """A name in the folder that is ours: `step-<step><ending>`."""

    step: int
    ending: str


def entries(checkpoints: Path) -> list[Entry]:
    """All that is ours in the folder, which need not exist; what people put beside it is left alone."""
    try:
        names = os.listdir(checkpoints)  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PilekitError(f"{visible(str(checkpoints))}: cannot be read: {error.strerror}") from error
    matches = filter(None, map(_NAME.fullmatch, names))
    return [Entry(int(match[1]), match[2] or "") for match in matches]


def find_checkpoint(
    checkpoints: Path, check: Callable[[Path], State] = verify, found: Sequence[Entry] | None = None
) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that verifies, and the damaged ones that are newer with the reasons; changes nothing.

    None if there is none at all. `check` proves a folder or raises `Damaged`, and `found` is what `entries` said, where
    ranks must go through the same folders together. PilekitError if there are checkpoints and none is good.
    """
    found = entries(checkpoints) if found is None else found
    damaged: dict[Path, str] = {}
    for step in sorted((step for step, ending in found if not ending), reverse=True):
        folder = checkpoints / f"step-{step}"
        try:
            state = check(folder)
            if state.progress.step != step:
                raise Damaged(f"it holds step {state.progress.step}")
        except Damaged as damage:
            damaged[folder] = str(damage)
        else:
            return folder, damaged
    damaged |= {checkpoints / f"step-{step}{ending}": "set aside" for step, ending in found if ending == DAMAGED}
    if damaged:
        newest, reason = next(iter(damaged.items()))
        raise PilekitError(
            f"{visible(str(checkpoints))}: no checkpoint in it is good, {newest.name} for one is damaged ({reason}); "
            "put back a good copy, or remove the folder to train from the first step again"
        )
    return None, {}


def set_aside(damaged: dict[Path, str], found: Path) -> None:
    """Name the damaged ones in one warning and rename them, since `found` is gone on from."""
    if damaged:
        told = "; ".join(f"{visible(str(folder))} is damaged ({reason})" for folder, reason in damaged.items())
        logger.warning("%s; going on from %s, set aside as *%s until the next save", told, found.name, DAMAGED)
        for folder in damaged:
            _rename(folder, folder.with_name(folder.name + DAMAGED))


def settle(checkpoints: Path) -> None:
    """Finish or remove what a killed process left; raises OSError."""
    names = entries(checkpoints)
    for step, ending in names:
        folder = checkpoints / f"step-{step}{ending}"
        if ending == PARTIAL:
            try:
                verify(folder)
            except Damaged:
                remove(folder)
            else:
                put_in_place(folder, checkpoints / f"step-{step}")
    for step, ending in names:
        if ending == REMOVED:
            remove(checkpoints / f"step-{step}{ending}")


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


def prune(checkpoints: Path, saved: int, keep_last: int) -> None:
    """Remove all but the `keep_last` newest and the one of step `saved`, and those that were set aside.

    A warning for what cannot be removed.
    """
    try:
        names = entries(checkpoints)
    except PilekitError as error:
        logger.warning("%s; older checkpoints are not removed", error)
        return
    steps = sorted(step for step, ending in names if not ending)
    for step in steps[:-keep_last]:
        folder = checkpoints / f"step-{step}"
        if step != saved and _rename(folder, removed := folder.with_name(folder.name + REMOVED)):
            remove(removed)
    for step, ending in names:
        if ending == DAMAGED:
            remove(checkpoints / f"step-{step}{ending}")


def _rename(path: Path, target: Path) -> bool:
    """Move `path` in place of `target`; a warning, since no state is lost, where that cannot be done."""
    try:
        if os.path.lexists(target):
            remove(target)
        path.rename(target)
    except OSError as error:
        logger.warning("%s cannot be renamed: %s", visible(str(path)), error.strerror)
        return False
    return True


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
