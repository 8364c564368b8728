"""The folder of a run's checkpoints: the meaning of its names, and how the newest complete checkpoint is found.

    RUN/checkpoints/step-N/     the state between two steps (state_file.py)

A save writes `step-N.partial`, flushes it to disk, renames it, and only then removes older checkpoints. Once renamed,
the checkpoint counts, so later failures are only warnings. A killed process may leave a `step-N.partial`, which the
next start or save removes. A checkpoint that does not verify is named and skipped, and the next save removes it.

So the newest good checkpoint is found at any moment, even if only one is kept. A step is saved again only if its folder
is damaged: a run resumes from its newest good checkpoint, so an older, good one is still there when the damaged folder
makes room. Only rank 0 changes this folder, and the run's lock admits one job, so a `.partial` is always a leftover.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pilekit.artifacts.atomic_write import PARTIAL, flush
from pilekit.errors import PilekitError, message_logger
from pilekit.train.checkpoint.state_file import Damaged, verify
from pilekit.train.run_folder import steps_in
from pilekit.workers.ranks import Ranks

logger = message_logger(__name__)


def find_checkpoint(checkpoints: Path, ranks: Ranks | None = None) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that verifies, and the newer, damaged ones with the reasons. Changes nothing.

    Returns None if there is no checkpoint at all. Raises PilekitError if there are some and none is good. With `ranks`,
    all ranks call this together.
    """
    damaged: dict[Path, str] = {}
    steps = steps_in(checkpoints) if ranks is None else ranks.on_rank0(lambda: steps_in(checkpoints))
    for step in reversed(steps):
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
            f"{checkpoints}: no checkpoint in it is good; the newest, {newest.name}, is damaged ({reason}); "
            "put back a good copy, or remove the folder to train from the first step again"
        )
    return None, {}


def remove_killed_saves(checkpoints: Path) -> None:
    """Remove each `.partial` folder."""
    for step in steps_in(checkpoints, PARTIAL):
        remove(checkpoints / f"step-{step}{PARTIAL}")


def put_in_place(partial: Path, final: Path) -> None:
    """Rename a complete `.partial` folder. A folder under its final name is damaged, and makes room. Raises OSError."""
    remove(final)
    partial.rename(final)
    with suppress(OSError):  # the name is there; only a power cut could still lose it
        flush(final.parent)


def prune(checkpoints: Path, saved: int, keep_last: int, damaged: Iterable[Path]) -> None:
    """Remove the `damaged` checkpoints and all others except the `keep_last` newest and the one of step `saved`."""
    for folder in damaged:
        if folder.name != f"step-{saved}":
            remove(folder)
    for step in steps_in(checkpoints)[:-keep_last]:
        if step != saved:
            remove(checkpoints / f"step-{step}")


def remove(path: Path) -> None:
    """Remove a folder, a file or a link. A failure is a warning."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s; remove it yourself", path, error.strerror)
