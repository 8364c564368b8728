"""The folder of a run: its files, who may write it, and which config may resume it.

    RUN/pilekit.json      marks the folder as a run, so that a search for shards does not read metrics as text; its
                          results list the step of each start, and name the checkpoint of another run that it began from
        config.toml       the config of the newest start, with all defaults
        metrics.jsonl     a line per step
        samples.jsonl     the model's continuations of prompts, if the config asks for them
        documents/        the documents of each step, unless the config says no (log/document_log.py)
        checkpoints/      step-N, the newest few, unless `checkpoint.dir` names another folder
        tensorboard/, wandb/, profile/   if the config asks for them
        model/            the trained model; present when the run is done
        model-ema/        the same with the running mean of its weights, if the config asks for it
        adapter/          the trained adapters as peft saves them, with `[lora]`; `model/` then comes with lora.merge
        .lock             held while a process trains here; free again as soon as that process has ended

A run resumes only with a config under which its checkpoint means the same. `FIXED` lists these fields: the model, how
documents become rows and which tokens a token attends to, the objective, the seed of each step, and the betas of the
optimizer's running means. Any other field (steps, learning rate, ZeRO stage, precision, micro-batches, ...) may change;
a change is logged. Shards, manifest, tokenizer, subsets, repeats, window and lanes are not compared here: the stream's
state holds fingerprints of their content and refuses others.

If `checkpoint.resume` is the path of another run's checkpoint, a new run starts from it under the same rule. The new
run keeps its own checkpoints and resumes from these, so the same command can be repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.checked import reason_of_damage, shown
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import refuse_linked_folders
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import TrainConfig, differences

logger = message_logger(__name__)

KIND, STARTS, BEGAN_FROM = "run", "starts", "began_from"
LOCK_FILE = ".lock"
AVERAGED = "-ema"
"""The end of the names of folders that hold the running mean of the weights, with `train.ema`."""
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")

FIXED = (
    "data.seq_len",
    "data.packing",
    "data.seed",
    "data.attention",
    "model.preset",
    "model.config",
    "model.path",
    "model.adapter",
    "model.from_teacher",
    "model.freeze",
    "lora.rank",
    "lora.alpha",
    "lora.targets",
    "train.global_batch_size",
    "train.objective",
    "train.ema",
    "train.seed",
    "optimizer.name",
    "optimizer.momentum",
    "optimizer.betas",
)
"""The fields that must be the same for a run to resume from a checkpoint."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run. The folder need not exist. `checkpoint_dir` is `checkpoint.dir`, if given."""

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
    def samples_file(self) -> Path:
        """One line of JSON per prompt and step at which it is continued, with `log.samples_every`."""
        return self.path / "samples.jsonl"

    @property
    def documents(self) -> Path:
        """The folder of the log of documents."""
        return self.path / "documents"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, `step-N` each."""
        return self.checkpoint_dir or self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The model_dir of the trained model."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """The trained adapters, with `[lora]`."""
        return self.path / "adapter"

    @property
    def is_begun(self) -> bool:
        """Whether it holds metrics or checkpoints that a new run would overwrite."""
        written = self.metrics_file.stat().st_size if self.metrics_file.exists() else 0
        return written > 0 or self.newest_step() is not None

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint by name, complete or not."""
        return max(steps_in(self.checkpoints), default=None)


def run_of(path: str | Path, config: TrainConfig) -> RunFolder:
    """The paths of a run with this config in the folder `path`; makes nothing."""
    return RunFolder(Path(path), None if config.checkpoint.dir is None else Path(config.checkpoint.dir))


def steps_in(checkpoints: Path, ending: str = "") -> list[int]:
    """The steps of all folders `step-N<ending>`, increasing. `checkpoints` need not exist. Other names are ignored."""
    try:
        names = os.listdir(checkpoints)  # noqa: PTH208 (names are all that is needed)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        return []
    except OSError as error:
        raise PilekitError(f"{checkpoints}: cannot be read: {error.strerror}") from error
    matches = (_STEP.fullmatch(name.removesuffix(ending)) for name in names if name.endswith(ending))
    return sorted(int(match[1]) for match in matches if match)


@contextmanager
def open_run(path: str | Path, config: TrainConfig) -> Iterator[RunFolder]:
    """Make or take the folder of a run, and lock it and the folder of `checkpoint.dir` until the block ends.

    Raises PilekitError if another process holds a lock, if a folder cannot be written, or if it holds something else.
    """
    run = run_of(path, config)
    name = str(path)
    with ExitStack() as locks:
        _check_folder(run, name)
        _lock(locks, run.path, name, "--out")
        if run.checkpoint_dir is not None and run.checkpoint_dir.absolute() != run.path.absolute():
            field = "checkpoint.dir"
            _lock(locks, run.checkpoint_dir, f"{field} = {shown(config.checkpoint.dir)}", field)
        if not (run.path / HEADER_FILE).exists():
            write_header(run.path, kind=KIND, parameters={}, inputs={})
        yield run


def _lock(locks: ExitStack, folder: Path, name: str, option: str) -> None:
    """Make `folder` and hold its lock. Messages name it `name`, and `option` as the way to choose another."""
    try:
        locks.enter_context(locked(folder / LOCK_FILE, wait=False))
    except PilekitError as error:
        if isinstance(error.__cause__, BlockingIOError):
            why = "another process trains in this folder; wait for it"
        else:
            why = f"cannot be made ({error})"
        raise PilekitError(f"{name}: {why}, or name another with {option}") from error


def check_start(run: RunFolder, config: TrainConfig) -> None:
    """Raise PilekitError if `config` cannot be trained in `run`, as far as names and configs show; writes nothing.

    It refuses: a folder that is not a run; an existing run, if `checkpoint.resume` is "never" or another checkpoint
    than the one it started from; checkpoints in another folder; and checkpoints whose config does not fit.
    """
    name = str(run.path)
    _check_folder(run, name)
    resume = config.checkpoint.resume
    if resume == "never" and run.is_begun:
        raise PilekitError(
            f'{name}: holds a run already, and checkpoint.resume is "never"; name another folder with --out, or set it '
            'to "auto" to resume'
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
        elif old is None or _meaning(field, old.checkpoint.resume) != _meaning(field, resume):
            raise PilekitError(
                f"{field} = {shown(resume)}: {name} has checkpoints already, and did not start from that one; name "
                'another folder with --out, or set it to "auto" to resume from the newest'
            )


def _check_dir(run: RunFolder, old: TrainConfig, config: TrainConfig) -> None:
    """Raise PilekitError if the run has checkpoints in the folder of its old config, and `config` names another."""
    before = run.path / "checkpoints" if old.checkpoint.dir is None else Path(old.checkpoint.dir)
    if run.newest_step() is None and before.absolute() != run.checkpoints.absolute() and steps_in(before):
        raise PilekitError(
            f"checkpoint.dir = {shown(config.checkpoint.dir)}: the run's checkpoints are in {before}; "
            "move them, or set that"
        )


def _check_origin(folder: Path, config: TrainConfig) -> None:
    """Raise PilekitError if `folder` is not a checkpoint from which a run with `config` can start."""
    name = f"checkpoint.resume = {shown(str(folder))}"
    if not (folder / "state.json").is_file() or not _STEP.fullmatch(folder.resolve().name):
        steps = steps_in(folder) or steps_in(folder / "checkpoints")
        near = f" there, such as step-{steps[-1]}" if steps else ""
        raise PilekitError(f'{name}: is not a checkpoint; give the path of a step-N folder{near}, "auto" or "never"')
    from pilekit.train.checkpoint.state_file import Damaged, read_state  # imports torch, which takes seconds

    try:
        old = msgspec.convert(read_state(folder).config, TrainConfig, strict=False)  # "inf" becomes a number
    except (Damaged, msgspec.ValidationError) as error:
        raise PilekitError(f"{name}: is not a good checkpoint: {reason_of_damage(error)}; give another") from None
    check_resumable(old, config)


def take_config(run: RunFolder, config: TrainConfig, step: int | None) -> None:
    """Write `config`, which `check_start` has passed, as the run's config. Log what changed.

    step   the step of the checkpoint from which the run resumes, or None if it has none and starts at the first step
    """
    name = str(run.path)
    if step is None:
        if run.is_begun:
            logger.warning("%s: has no checkpoint to resume from, so it starts over", name)
    elif run.config_file.exists():
        for field, before, after in differences(load_config(run.config_file), config):
            logger.warning("%s: resumes with %s = %s, which was %s", name, field, shown(after), shown(before))
    with write_atomically(run.config_file) as file:
        file.write(to_toml(config).encode())
    before = {} if step is None else read_header(run.path, KIND).results
    results = {**before, STARTS: [*before.get(STARTS, []), step or 0]}
    if step is not None and STARTS not in before:  # "auto" may take the place of the path in a later config
        results[BEGAN_FROM] = config.checkpoint.resume
    write_header(run.path, kind=KIND, parameters={}, inputs={}, results=results)


def check_resumable(old: TrainConfig, new: TrainConfig) -> None:
    """Raise PilekitError, naming the field and both values, if a checkpoint of `old` does not fit `new`."""
    for field, before, after in differences(old, new):
        if field in FIXED and _meaning(field, before) != _meaning(field, after):
            raise PilekitError(
                f"{field} = {shown(after)}: the run's checkpoint was made with {shown(before)}, and cannot resume with "
                "another value; set that, or name another folder with --out"
            )


def _meaning(field: str, value: Any) -> Any:
    """The value to compare: a path is made absolute."""
    if field in ("model.path", "model.adapter", "model.config", "checkpoint.resume") and value is not None:
        return Path(value).absolute()
    return value


def _check_folder(run: RunFolder, name: str) -> None:
    """Raise PilekitError unless `run` is a run, an empty folder, or does not exist."""
    try:
        entries = os.listdir(run.path)  # noqa: PTH208
    except FileNotFoundError:
        if not run.path.is_symlink():
            return
        entries = ["a broken link"]
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise PilekitError(f"{name}: cannot be the folder of a run: {why}; name another with --out") from error
    if HEADER_FILE in entries:
        read_header(run.path, KIND)
        ours = re.compile(
            r"(checkpoints|documents|profile|tensorboard|wandb|(model|adapter)(-ema)?(\.partial|\.replaced)?)"
        )
        refuse_linked_folders(*(run.path / name for name in entries if ours.fullmatch(name)))
    # A start that was killed leaves no more than these.
    elif foreign := [entry for entry in entries if entry != LOCK_FILE and not entry.startswith(f"{HEADER_FILE}.")]:
        raise PilekitError(
            f"{name}: holds something that is not a run ({shortened(min(foreign), 60)}); name another folder with --out"
        )
