"""A branch: a run that begins with the whole state of another run's checkpoint. Both runs name each other.

    RUN/pilekit.json                           of the branch: its results hold the path of the checkpoint
    RUN/checkpoints/branches/<hash>.json       of the trunk: the folder of a branch, and the step after which it left

The note of the trunk lies beside its checkpoints, so it is found wherever `checkpoint.dir` puts them. It has a file for
each branch, named by a hash of the branch's path. So any number of branches may begin while the trunk trains, and no
other file of the trunk is touched. A trunk that cannot be written gets no note, with a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.errors import PilekitError, message_logger
from pilekit.train.config.sections import TrainConfig
from pilekit.train.run_folder import BEGAN_FROM, KIND, RunFolder

logger = message_logger(__name__)

BRANCHES = "branches"
_KIND = "branch"
_NOTE = re.compile(r"[0-9a-f]{16}\.json")


@dataclass(frozen=True, slots=True)
class Branch:
    """A run that began from a checkpoint of another: the step of the checkpoint, and the folder of the run."""

    step: int
    run: str


def origin_of(run: RunFolder, config: TrainConfig) -> Path | None:
    """The checkpoint of another run from which `run` begins, or None.

    That is the one that the config names, or with "auto" the one from which the run began before. A run that has
    checkpoints of its own resumes from these.
    """
    resume = config.checkpoint.resume
    if run.newest_step() is not None or resume == "never":
        return None
    if resume != "auto":
        return Path(resume)
    began_from = began(run)
    return None if began_from is None else Path(began_from)


def began(run: RunFolder) -> str | None:
    """The path of the checkpoint of another run that `run` began from; None if it is no branch, or does not exist."""
    if not (run.path / HEADER_FILE).exists():
        return None
    path = read_header(run.path, KIND).results.get(BEGAN_FROM)
    return None if path is None else str(path)


def note_branch(origin: Path, step: int, run: RunFolder) -> None:
    """Note beside the checkpoint `origin`, of that step, that `run` began from it."""
    path = str(run.path.absolute())
    name = f"{xxhash.xxh3_64_hexdigest(path.encode(errors='surrogateescape'))}.json"
    results = {"step": step, "run": path}
    try:
        write_header(origin.parent / BRANCHES, kind=_KIND, parameters={}, inputs={}, results=results, name=name)
    except PilekitError as error:
        logger.warning("%s; so the run that it is of does not name this branch", error)


def branches_of(run: RunFolder) -> list[Branch]:
    """The runs that began from checkpoints of `run`, by step and path. PilekitError if a note of one is damaged."""
    folder = run.checkpoints / BRANCHES
    if not folder.is_dir():
        return []
    branches = []
    for path in folder.iterdir():
        if _NOTE.fullmatch(path.name):
            results = read_header(folder, _KIND, path.name).results
            try:
                branches.append(msgspec.convert(results, Branch))
            except msgspec.ValidationError as error:
                raise PilekitError(f"{path}: does not name a branch ({error}); remove it") from error
    return sorted(branches, key=lambda branch: (branch.step, branch.run))
