"""Checkpoints: the state between two steps, whole or not there, and the newest whole one found again.

    RUN/checkpoints/step-N/     model.safetensors, optimizer.safetensors, state.json (written last: checkpoint_files.py)
    RUN/latest                  a text file: `checkpoints/step-N`; for people and scripts, nothing here relies on it

A save writes `step-N.partial`, flushes it to disk, renames it, and only then removes what is older. Other names beside
`step-N` are what was going on when a process was killed, and the next call settles it:

    step-N.partial    a save; finished if all of it is there, else removed
    step-N.removed    a removal; finished
    step-N.damaged    did not verify when a run was resumed; kept until the next save succeeds, for who wants to look

So at any moment the newest good checkpoint is found, even where only one is kept and the same step is saved again. A
run has one process that writes (its folder is locked), which is why leftovers can be told from work in progress.

Torch's random state is not part of it, because every step seeds torch from (train.seed, step).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from torch.optim import Optimizer

from pilekit.errors import PilekitError, visible
from pilekit.shards.atomic import write_atomically
from pilekit.train.checkpoint_files import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    Damaged,
    Progress,
    read_state,
    verify,
    write_state,
)
from pilekit.train.checkpoint_tensors import (
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
    write_tensors,
)

__all__ = ["Progress", "find_checkpoint", "load_checkpoint", "newest_checkpoint", "save_checkpoint"]

logger = logging.getLogger(__name__)

PARTIAL, REMOVED, DAMAGED = ".partial", ".removed", ".damaged"
_NAME = re.compile(r"step-(0|[1-9][0-9]*)(\.partial|\.removed|\.damaged)?")


def save_checkpoint(
    checkpoints: Path,
    latest: Path,
    model: nn.Module,
    optimizer: Optimizer,
    progress: Progress,
    *,
    config: Mapping[str, Any],
    keep_last: int,
) -> Path:
    """Save the state as `checkpoints/step-N`, point `latest` to it, keep the `keep_last` newest; returns the folder.

    PilekitError where it cannot be written, a full disk included: the checkpoints there were are as they were.
    """
    if keep_last < 1:
        raise PilekitError(f"keep_last is {keep_last}, and at least the newest checkpoint must be kept; give 1 or more")
    final = checkpoints / f"step-{progress.step}"
    partial = final.with_name(final.name + PARTIAL)
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        _settle(checkpoints)
        try:
            partial.mkdir()
            write_tensors(partial / MODEL_FILE, model_tensors(model))
            write_tensors(partial / OPTIMIZER_FILE, optimizer_tensors(model, optimizer))
            write_state(partial, progress, dict(config))
            _flush(partial)
        except BaseException:
            _remove(partial)
            raise
        _put_in_place(partial, final)
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise PilekitError(
            f"{visible(str(final))}: the checkpoint cannot be written: {visible(why or str(error), 200)}; earlier "
            "checkpoints are as they were: make room (or give leave to write) and run the same command again"
        ) from error
    _point(latest, final)
    _prune(checkpoints, progress.step, keep_last)
    return final


def newest_checkpoint(checkpoints: Path, latest: Path) -> Path | None:
    """The newest checkpoint that verifies, whatever `latest` says; None if there has been none.

    Settles what a killed process left. Damaged checkpoints that are newer are named in one warning and set aside.
    PilekitError if there are checkpoints and none is good. Only for the process that owns the run; others may ask
    `find_checkpoint`.
    """
    try:
        _settle(checkpoints)
    except OSError as error:
        raise PilekitError(f"{visible(str(checkpoints))}: cannot be written: {error.strerror}") from error
    found, damaged = find_checkpoint(checkpoints)
    if found is None:
        return None
    if damaged:
        told = "; ".join(f"{visible(str(folder))} is damaged ({reason})" for folder, reason in damaged.items())
        logger.warning("%s; going on from %s, set aside as *%s until the next save", told, found.name, DAMAGED)
        for folder in damaged:
            _rename(folder, folder.with_name(folder.name + DAMAGED))
    _point(latest, found)
    return found


def find_checkpoint(checkpoints: Path) -> tuple[Path | None, dict[Path, str]]:
    """What `newest_checkpoint` would return, and the damaged ones that are newer with the reasons; changes nothing.

    PilekitError if there are checkpoints and none is good.
    """
    names = _names(checkpoints)
    damaged: dict[Path, str] = {}
    for step in sorted((step for step, ending in names if not ending), reverse=True):
        folder = checkpoints / f"step-{step}"
        try:
            state = verify(folder)
            if state.progress.step != step:
                raise Damaged(f"it holds step {state.progress.step}")
        except Damaged as damage:
            damaged[folder] = str(damage)
        else:
            return folder, damaged
    damaged |= {checkpoints / f"step-{step}{ending}": "set aside" for step, ending in names if ending == DAMAGED}
    if damaged:
        newest, reason = next(iter(damaged.items()))
        raise PilekitError(
            f"{visible(str(checkpoints))}: no checkpoint in it is good, {newest.name} for one is damaged ({reason}); "
            "put back a good copy, or remove the folder to train from the first step again"
        )
    return None, {}


def load_checkpoint(folder: Path, model: nn.Module, optimizer: Optimizer) -> Progress:
    """Bring model and optimizer into the state saved in `folder`, one that `newest_checkpoint` found; its progress.

    The optimizer keeps its own learning rate and groups. PilekitError names the parameters that do not fit.
    """
    try:
        state = read_state(folder)
    except Damaged as damage:
        raise PilekitError(f"{visible(str(folder))}: is not a good checkpoint: {damage}") from damage
    load_model(folder / MODEL_FILE, model)
    load_optimizer(folder / OPTIMIZER_FILE, model, optimizer)
    return state.progress


def _names(checkpoints: Path) -> list[tuple[int, str]]:
    """Step and ending of all that is ours; what people put beside it is left alone."""
    try:
        names = os.listdir(checkpoints)  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PilekitError(f"{visible(str(checkpoints))}: cannot be read: {error.strerror}") from error
    matches = filter(None, map(_NAME.fullmatch, names))
    return [(int(match[1]), match[2] or "") for match in matches]


def _settle(checkpoints: Path) -> None:
    """Finish or remove what a killed process left."""
    names = _names(checkpoints)
    for step, ending in names:
        folder = checkpoints / f"step-{step}{ending}"
        if ending == PARTIAL:
            try:
                verify(folder)
            except Damaged:
                _remove(folder)
            else:
                _put_in_place(folder, checkpoints / f"step-{step}")
    for step, ending in names:
        if ending == REMOVED:
            _remove(checkpoints / f"step-{step}{ending}")


def _put_in_place(partial: Path, final: Path) -> None:
    """Make a whole `.partial` the checkpoint; killed in between, `_settle` does the rest, since it is still whole."""
    _remove(final)
    partial.rename(final)
    _flush(final.parent)


def _point(latest: Path, folder: Path) -> None:
    text = f"{folder.parent.name}/{folder.name}\n".encode()
    if latest.is_symlink():  # never write where it leads to
        _remove(latest)
    try:
        if latest.read_bytes() == text:
            return
    except OSError:
        pass
    with write_atomically(latest) as file:
        file.write(text)


def _prune(checkpoints: Path, saved: int, keep_last: int) -> None:
    names = _names(checkpoints)
    steps = sorted(step for step, ending in names if not ending)
    for step in steps[:-keep_last]:
        folder = checkpoints / f"step-{step}"
        if step != saved and _rename(folder, removed := folder.with_name(folder.name + REMOVED)):
            _remove(removed)
    for step, ending in names:
        if ending == DAMAGED:
            _remove(checkpoints / f"step-{step}{ending}")


def _rename(path: Path, target: Path) -> bool:
    """Move `path` in place of `target`; a warning, since no state is lost, where that cannot be done."""
    try:
        if os.path.lexists(target):
            _remove(target)
        path.rename(target)
    except OSError as error:
        logger.warning("%s cannot be renamed: %s", visible(str(path)), error.strerror)
        return False
    return True


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link; a warning where that cannot be done."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s; remove it yourself", visible(str(path)), error.strerror)


def _flush(folder: Path) -> None:
    """Bring the names in a folder to the disk, so that a cut of power leaves them in the order they were made."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot do it
            os.fsync(handle)
    finally:
        os.close(handle)
