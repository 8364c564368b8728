"""The folder of a run: its files, and who may write it.

RUN/pilekit.json      marks the folder as a run, so that a search for shards does not read metrics as text; its
                      results list the step of each start, name the checkpoint of another run that it began from,
                      and say what `data.without` and `data.plant` changed
    config.toml       the config of the newest start, with all defaults
    metrics.jsonl     a line per step
    samples.jsonl     the model's continuations of prompts, if the config asks for them
    documents/        the documents of each step, unless the config says no (log/document_log.py)
    checkpoints/      step-N, the newest few, unless `checkpoint.dir` names another folder; beside them, `branches`
                      names the runs that began from one (branches.py)
    tensorboard/, wandb/, profile/   if the config asks for them
    model/            the trained model; present when the run is done
    model-ema/        the same with the running mean of its weights, if the config asks for it
    adapter/          the trained adapters as peft saves them, with `[lora]`; `model/` then comes with lora.merge
    .lock             held while a process trains here; free again as soon as that process has ended
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pilekit.artifacts.checked import shown
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import refuse_linked_folders
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.errors import PilekitError, shortened
from pilekit.train.config.sections import TrainConfig

KIND, STARTS, BEGAN_FROM, ALTERED = "run", "starts", "began_from", "altered"
LOCK_FILE = ".lock"
AVERAGED = "-ema"
"""The end of the names of folders that hold the running mean of the weights, with `train.ema`."""
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


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
        check_folder(run, name)
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


def check_folder(run: RunFolder, name: str) -> None:
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
