"""RUN: what a run leaves behind, in which order, and that one process writes it at a time.

    RUN/pilekit.json      says that this is a run, so that a search for shards above it does not take metrics for text
        config.toml       the config of the newest start, with all defaults
        metrics.jsonl     a line per step
        checkpoints/      step-N, the newest few, unless `checkpoint.dir` is elsewhere
        latest            which of them to go on from
        model/            the trained model; there when the run is done

The lock is the kernel's (`flock` on RUN/.lock): it is free the moment its process is gone, however it went, so a killed
run needs no clearing up and a process number that another program has by now misleads nobody. The file stays: removing
it would let two processes hold two files of one name.

A run goes on from its checkpoint only with a config under which the checkpoint means the same. `FIXED` lists what it
depends on: the model, how documents become rows and what a token of them sees, the objective, the seed from which
each step draws, and the betas, under which the optimizer's running means were taken. Whatever else changed (steps,
learning rate, ZeRO stage, precision, micro-batches, ...) is taken and logged. Where shards, manifest and tokenizer lie
is not compared here, nor how they are dealt out: the state of the stream holds fingerprints of their content, and
refuses others; so it does with what it was told of subsets, repeats, window and lanes.

Where `checkpoint.resume` is the path of a checkpoint of another run, a new run begins from that, under the same rule.
It keeps its own checkpoints and goes on from them, so that the same command can be given again and again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, visible
from pilekit.train.config import TrainConfig, differences, load_config, shown, to_toml

logger = logging.getLogger(__name__)

KIND = "run"
LOCK_FILE = ".lock"
_STEP = r"step-\d{1,18}"

FIXED = (
    "data.seq_len",
    "data.packing",
    "data.seed",
    "data.attention",
    "model.preset",
    "model.config",
    "model.path",
    "train.global_batch_size",
    "train.objective",
    "train.seed",
    "optimizer.betas",
)
"""What a checkpoint depends on: a run that goes on from one must have the same."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where everything of a run lies; the folder need not exist.

    checkpoint_dir   `checkpoint.dir`, if that is given
    """

    path: Path
    checkpoint_dir: Path | None = None

    @property
    def config_file(self) -> Path:
        """The config of the newest start, with all defaults."""
        return self.path / "config.toml"

    @property
    def metrics_file(self) -> Path:
        """One line of JSON per step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, `step-N` each."""
        return self.checkpoint_dir or self.path / "checkpoints"

    @property
    def latest_file(self) -> Path:
        """A text file that holds the newest checkpoint's path in the run."""
        return self.path / "latest"

    @property
    def model(self) -> Path:
        """The model_dir of the trained model."""
        return self.path / "model"

    @property
    def is_begun(self) -> bool:
        """Whether there is something in it that a new run would overwrite."""
        written = self.metrics_file.stat().st_size if self.metrics_file.exists() else 0
        return written > 0 or self.newest_step() is not None

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint by its name, whether or not it is whole; nothing is touched."""
        return _newest_step(self.checkpoints)


def run_of(path: str | Path, config: TrainConfig) -> RunFolder:
    """Where everything of a run in the folder `path` with this config lies; makes nothing."""
    return RunFolder(Path(path), None if config.checkpoint.dir is None else Path(config.checkpoint.dir))


def _newest_step(checkpoints: Path) -> int | None:
    try:
        names = os.listdir(checkpoints)  # noqa: PTH208 (names are all that is needed)
    except (OSError, ValueError):
        return None
    return max((int(name[5:]) for name in names if re.fullmatch(_STEP, name)), default=None)


@contextmanager
def open_run(path: str | Path, config: TrainConfig) -> Iterator[RunFolder]:
    """Make the folder of a run, or take the one there is, and hold its lock until the block ends; the same goes for
    the folder that `checkpoint.dir` names.

    PilekitError if another process holds it, if the folder holds something that is no run, if it cannot be written.
    """
    run = run_of(path, config)
    name = visible(str(path))
    with ExitStack() as locks:
        try:
            _check_folder(run, name)
            locks.enter_context(_locked(run.path, name, "--out"))
        except (OSError, ValueError) as error:  # the latter: a null character in the path
            why = error.strerror if isinstance(error, OSError) else error
            raise PilekitError(f"{name}: cannot be made the folder of a run: {why}; name another with --out") from error
        if run.checkpoint_dir is not None and run.checkpoint_dir.absolute() != run.path.absolute():
            name = f"checkpoint.dir = {shown(config.checkpoint.dir)}"
            try:
                locks.enter_context(_locked(run.checkpoint_dir, name, "checkpoint.dir"))
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise PilekitError(f"{name}: cannot be made the folder of checkpoints: {why}; name another") from error
        if not (run.path / HEADER_FILE).exists():
            write_header(run.path, kind=KIND, parameters={}, inputs={})
        yield run


@contextmanager
def _locked(folder: Path, name: str, field: str) -> Iterator[None]:
    """Make `folder` and hold its lock; an error speaks of `name`, and of `field` as what names another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = open_own(folder / LOCK_FILE, alone=True)
    try:
        _hold(lock, name, field)
        yield
    finally:
        os.close(lock)


def _hold(lock: int, name: str, field: str) -> None:
    """Lock the file, and write into it who holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        who = f" (process {holder})" if holder.isdecimal() else ""
        raise PilekitError(
            f"{name}: another process{who} trains in this folder; wait for it, or name another with {field}"
        ) from None
    except OSError as error:
        logger.warning(
            "%s: its file system has no locks (%s); see to it that no second process trains in it", name, error.strerror
        )
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def check_start(run: RunFolder, config: TrainConfig) -> None:
    """Raise PilekitError if `config` cannot be trained in `run`, as far as names and configs tell; writes nothing.

    That is if `run` is something else than a run, an empty folder or nothing; if it is begun and `checkpoint.resume` is
    "never", or a path that it did not begin from; if it has checkpoints that were made with a config that does not fit,
    or has them elsewhere; and if the checkpoint that a new run is to begin from is none, or does not fit.
    """
    name = visible(str(run.path))
    _check_folder(run, name)
    resume = config.checkpoint.resume
    if resume == "never" and run.is_begun:
        raise PilekitError(
            f'{name}: holds a run already, and checkpoint.resume is "never"; name another folder with --out, or set it '
            'to "auto" to go on'
        )
    old = load_config(run.config_file) if run.config_file.exists() else None
    if old is not None:
        _check_dir(run, old, config)
    if run.newest_step() is not None and old is not None:
        check_resumable(old, config)
    if resume not in ("auto", "never"):
        field = "checkpoint.resume"
        if run.newest_step() is None:
            _check_origin(Path(resume), config)
        elif old is None or _meant(field, old.checkpoint.resume) != _meant(field, resume):
            raise PilekitError(
                f"{field} = {shown(resume)}: {name} has checkpoints already, and did not begin from that one; name "
                'another folder with --out, or set it to "auto" to go on from the newest'
            )


def _check_dir(run: RunFolder, old: TrainConfig, config: TrainConfig) -> None:
    """Raise PilekitError if the run's checkpoints are where its config said, and `config` says something else."""
    before = run.path / "checkpoints" if old.checkpoint.dir is None else Path(old.checkpoint.dir)
    if (
        run.newest_step() is None
        and before.absolute() != run.checkpoints.absolute()
        and _newest_step(before) is not None
    ):
        raise PilekitError(
            f"checkpoint.dir = {shown(config.checkpoint.dir)}: the run's checkpoints are in {visible(str(before))}; "
            "move them, or set that"
        )


def _check_origin(folder: Path, config: TrainConfig) -> None:
    """Raise PilekitError if `folder` is no checkpoint, or not one that a run with `config` can go on from."""
    name = f"checkpoint.resume = {shown(str(folder))}"
    if not (folder / "state.json").is_file() or not re.fullmatch(_STEP, folder.resolve().name):
        newest = next(filter(None, map(_newest_step, (folder, folder / "checkpoints"))), None)
        near = "" if newest is None else f" there, such as step-{newest}"
        raise PilekitError(f'{name}: is no checkpoint; give the path of a step-N folder{near}, "auto" or "never"')
    from pilekit.train.checkpoint.manifest import Damaged, read_state  # torch: seconds, and only here

    try:
        old = msgspec.convert(read_state(folder).config, TrainConfig, strict=False)  # "inf" is a number
    except (Damaged, msgspec.ValidationError) as error:
        raise PilekitError(f"{name}: is not a good checkpoint: {visible(str(error), 200)}; give another") from None
    check_resumable(old, config)


def take_config(run: RunFolder, config: TrainConfig, checkpoint: Path | None) -> None:
    """Make `config` the one of the run, which goes on from `checkpoint`, its own or another's, or begins if it is None.

    PilekitError, and nothing written, for what `check_start` refuses, and if there are checkpoints but none is whole.
    What differs from the run's config so far is logged.
    """
    name = visible(str(run.path))
    check_start(run, config)
    if checkpoint is None:
        if run.newest_step() is not None:
            raise PilekitError(f"{name}: none of its checkpoints is whole; remove the folder checkpoints to begin anew")
        if run.is_begun:
            logger.warning("%s: has no checkpoint to go on from, so it begins anew", name)
    elif run.config_file.exists():
        for field, before, after in differences(load_config(run.config_file), config):
            logger.warning("%s: goes on with %s = %s, which was %s", name, field, shown(after), shown(before))
    with write_atomically(run.config_file) as file:
        file.write(to_toml(config).encode())


def check_resumable(old: TrainConfig, new: TrainConfig) -> None:
    """Raise PilekitError, naming field and values, if a checkpoint made with `old` means something else with `new`."""
    for field, before, after in differences(old, new):
        if field in FIXED and _meant(field, before) != _meant(field, after):
            raise PilekitError(
                f"{field} = {shown(after)}: the run's checkpoint was made with {shown(before)}, and cannot go on with "
                "another; set that, or name another folder with --out"
            )


def _meant(field: str, value: Any) -> Any:
    """What a value stands for, however it is spelt."""
    if field in ("model.path", "model.config", "checkpoint.resume") and value is not None:
        return Path(value).absolute()
    return value


def _check_folder(run: RunFolder, name: str) -> None:
    """Raise PilekitError if `run` is something else than a run, an empty folder, or nothing."""
    if not os.path.lexists(run.path):
        return
    if not run.path.is_dir():
        raise PilekitError(f"{name}: is no folder, so it cannot be that of a run; name another with --out")
    entries = os.listdir(run.path)  # noqa: PTH208
    if HEADER_FILE in entries:
        read_header(run.path, KIND)
    # A start that was killed has left no more than these.
    elif others := [entry for entry in entries if entry != LOCK_FILE and not entry.startswith(f"{HEADER_FILE}.")]:
        raise PilekitError(
            f"{name}: holds something that is not a run ({visible(min(others), 60)}); name another folder with --out"
        )
