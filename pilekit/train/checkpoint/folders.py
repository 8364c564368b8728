"""The folder of a run's checkpoints: the meaning of its names, and how the newest complete checkpoint is found.

    RUN/checkpoints/step-N/     the state between two steps (manifest.py)
    RUN/latest                  a text file, `checkpoints/step-N`, for people and scripts; nothing here reads it

A save writes `step-N.partial`, flushes it to disk, renames it, and only then removes older checkpoints. Once renamed,
the checkpoint counts, so later failures are only warnings. A killed process may leave a `step-N.partial`. The next
start or save completes it if its files verify, and removes it otherwise. A checkpoint that does not verify is named and
skipped, and the next save removes it.

So the newest good checkpoint is found at any moment, even if only one is kept and the same step is saved again. Only
rank 0 changes this folder, and the run's lock admits one job, so a `.partial` is always a leftover.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pilekit.artifacts.atomic_write import PARTIAL, flush, write_atomically
from pilekit.errors import PilekitError, message_logger, visible
from pilekit.train.checkpoint.manifest import Damaged, verify
from pilekit.train.run_folder import steps_in
from pilekit.workers.ranks import Ranks

logger = message_logger(__name__)


def find_checkpoint(
    checkpoints: Path, ranks: Ranks | None = None, steps: Sequence[int] | None = None
) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that verifies, and the newer, damaged ones with the reasons. Changes nothing.

    Returns None if there is no checkpoint at all; raises PilekitError if there are some and none is good. With `ranks`,
    all ranks call this together, and `steps` is a result of `steps_in` that they share.
    """
    damaged: dict[Path, str] = {}
    for step in reversed(steps_in(checkpoints) if steps is None else steps):
        folder = checkpoints / f"step-{step}"
        try:
            state = verify(folder, ranks)
            if state.progress.step != step:
                raise Damaged(f"it holds step {state.progress.step}")
        except Damaged as damage:
            damaged[folder] = str(damage)
        else:
            return folder, damaged
    if damaged:
        newest, reason = next(iter(damaged.items()))
        raise (PilekitError if ranks is None else ranks.error)(
            f"{visible(checkpoints)}: no checkpoint in it is good; the newest, {newest.name}, is damaged ({reason}); "
            "put back a good copy, or remove the folder to train from the first step again"
        )
    return None, {}


def finish_killed_saves(checkpoints: Path, keep_last: int) -> None:
    """Complete, and prune as it would have, or remove each `.partial` folder of a killed save. Raises OSError."""
    for step in steps_in(checkpoints, PARTIAL):
        partial = checkpoints / f"step-{step}{PARTIAL}"
        try:
            verify(partial)
        except Damaged:
            remove(partial)
        else:
            put_in_place(partial, checkpoints / f"step-{step}")
            prune(checkpoints, step, keep_last, ())


def put_in_place(partial: Path, final: Path) -> None:
    """Rename a complete `.partial` folder. After a kill in between, `finish_killed_saves` completes the rename."""
    remove(final)
    partial.rename(final)
    with suppress(OSError):  # the name is there; only a power cut could still lose it
        flush(final.parent)


def point_to(latest: Path, folder: Path) -> None:
    """Write the path of a checkpoint into `latest`: relative if it is below the same folder, else absolute.

    A failure is a warning, because the checkpoint is found without this file.
    """
    inside = folder.is_relative_to(latest.parent)
    try:
        with write_atomically(latest) as file:
            file.write(os.fsencode(f"{folder.relative_to(latest.parent) if inside else folder.absolute()}\n"))
    except PilekitError as error:
        logger.warning("%s; it should name %s, which is complete", error, folder)


def prune(checkpoints: Path, saved: int, keep_last: int, damaged: Iterable[Path]) -> None:
    """Remove the `damaged` checkpoints and all others except the `keep_last` newest and the one of step `saved`."""
    for folder in damaged:
        if folder.name != f"step-{saved}":
            remove(folder)
    for step in steps_in(checkpoints)[:-keep_last]:
        if step != saved:
            remove(checkpoints / f"step-{step}")


def remove(path: Path) -> None:
    """Remove a folder, a file or a link; a failure is a warning."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s; remove it yourself", path, error.strerror)
