"""`open_logs`: rank 0 writes the figures of steps to metrics.jsonl, TensorBoard and Weights & Biases, and warns.

All three get the same numbers, names and steps. The two viewers are extras, so the trainer checks for them before
anything else. metrics.jsonl remains the record by which a run is resumed and judged: a viewer that fails ends with a
warning, and training continues.

A run that resumes after step N hides later steps of an earlier start from TensorBoard's pages. Weights & Biases
cannot take steps back. There the resumed run adds to the same page, whose id is in the name of its folder in `wandb/`,
and sends no step again: a resumed run computes the figures that the page shows already.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pilekit.errors import PilekitError, message_logger, shortened, visible
from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.alerts import MemoryGrowth, Watch
from pilekit.train.log.metrics import StepLog, StepMetrics, numbers_of, read_metrics
from pilekit.train.run_folder import RunFolder

if TYPE_CHECKING:
    from pilekit.workers.ranks import Ranks  # imports torch, which takes seconds; `check_viewers` comes before

logger = message_logger(__name__)

FLUSH_SECONDS = 10
"""A killed run may lose TensorBoard's figures of this many seconds. It writes them again when it resumes."""
UPLOAD_SECONDS = 120
"""The longest wait for Weights & Biases at the end of a run. The rest stays on disk, for `wandb sync`."""
LONGEST_TAG = 120

Write = Callable[[StepMetrics], None]
"""Shows the figures of a step. Control characters in their names are made visible."""


def check_viewers(config: TrainConfig) -> None:
    """Raise PilekitError if `[log]` asks for a package that is not installed, or for a page without any key for it."""
    for name in ("tensorboard", "wandb"):
        # A folder `wandb`, which the package leaves where it runs, is found too, but without an origin.
        if getattr(config.log, name) and getattr(importlib.util.find_spec(name), "origin", None) is None:
            raise PilekitError(
                f"log.{name} = true: the package {name} is not installed; pip install 'pilekit[{name}]', or "
                f"set log.{name} = false (metrics.jsonl has the same figures)"
            )
    # The package finds a key in one of these places. Importing it to ask would take a second.
    named = any(map(os.environ.get, ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC", "WANDB_CONFIG_DIR")))
    files = [Path.home() / name for name in (".netrc", "_netrc", ".config/wandb/settings")]
    is_online = os.environ.get("WANDB_MODE", "online") == "online"
    if config.log.wandb and is_online and not named and not any(map(Path.exists, [*files, Path("wandb/settings")])):
        raise PilekitError(
            "log.wandb = true: there is no API key; run `wandb login`, or set WANDB_MODE=offline, or log.wandb = false"
        )


@contextmanager
def open_logs(
    run: RunFolder, config: TrainConfig, ranks: Ranks, remedy: str, peek: Callable[[int], str], step: int
) -> Iterator[Callable[[StepMetrics, Mapping[str, Sequence[int]]], None]]:
    """Yield a function that every rank calls with every step's figures, and the memory of all ranks by kind.

    metrics.jsonl and the viewers get every `log.every`-th step, the last step, and steps with bits per byte. Figures of
    steps after `step` are dropped. Every step is checked for warnings (alerts.py). `remedy` and `peek` are those of
    `Watch`. A PilekitError of a call is raised on rank 0 alone. If lines cannot be written at the end of the block, all
    ranks raise.
    """
    writers: list[Write] = []
    watch: Watch | None = None
    growth = MemoryGrowth() if config.log.memory and ranks.is_first else None

    def begin() -> None:
        nonlocal watch
        writers.append(opened.enter_context(StepLog(run.metrics_file, StepMetrics, resume_step=step)).write)
        if config.log.tensorboard:
            writers.append(opened.enter_context(open_tensorboard(run.path / "tensorboard", resume_step=step)))
        if config.log.wandb:
            writers.append(opened.enter_context(open_wandb(run.path, config)))
        watch = Watch(peek, remedy, read_metrics(run.metrics_file))

    def log(metrics: StepMetrics, memory: Mapping[str, Sequence[int]]) -> None:
        if growth is not None:
            growth.write(metrics.step, memory)
        has_score = metrics.bpb is not msgspec.UNSET
        if metrics.step % config.log.every == 0 or metrics.step == config.steps or has_score:
            for write in writers:
                write(metrics)
        if watch is not None:
            watch.write(metrics)

    with ExitStack() as opened:
        ranks.on_rank0(begin)
        yield log
        ranks.on_rank0(opened.close)


@contextmanager
def _viewer(
    add: Callable[[dict[str, float], int], None], close: Callable[[], None], where: str, title: str
) -> Iterator[Write]:
    """Yield a function that shows a step's figures, until the first failure.

    add     takes the numbers of a step by name, and the step
    close   sends or writes what is still in memory
    where   the place of the files, for a warning
    title   the viewer's name
    """
    has_failed = False

    def attempt(work: Callable[..., None], *arguments: Any) -> None:
        nonlocal has_failed
        try:
            if not has_failed:
                work(*arguments)
        except Exception as error:  # a viewer's own errors have no common class
            has_failed = True
            why = _not_written(where, error)
            logger.warning("%s; nothing more is written for %s until the run is started again", why, title)

    def write(metrics: StepMetrics) -> None:
        numbers = {visible(name, LONGEST_TAG): number for name, number in numbers_of(metrics)}
        attempt(add, numbers, metrics.step)

    try:
        yield write
    finally:
        attempt(close)


def open_tensorboard(
    folder: Path, *, resume_step: int, flush_seconds: float = FLUSH_SECONDS
) -> AbstractContextManager[Write]:
    """A context that yields a function, which appends a step's figures to the event files of a folder.

    The folder is made if missing. Steps after `resume_step` are hidden. Raises PilekitError if it cannot be made.
    """
    from torch.utils.tensorboard import SummaryWriter  # takes seconds

    where = str(folder)
    try:
        writer = SummaryWriter(folder, purge_step=resume_step + 1, flush_secs=flush_seconds)
    except OSError as error:
        why = f"{_not_written(where, error)}; set log.tensorboard = false, or name another --out"
        raise PilekitError(why) from error

    def add(numbers: dict[str, float], step: int) -> None:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)

    return _viewer(add, writer.close, where, "TensorBoard")


def open_wandb(folder: Path, config: TrainConfig) -> AbstractContextManager[Write]:
    """A context that yields a function, which adds a step's figures to the page of the run in `folder`.

    The page is continued if the run has one. Its files are in `wandb` of the folder.

    The package's own variables decide the rest: WANDB_MODE=offline, WANDB_PROJECT (default: pilekit), WANDB_API_KEY.
    Raises PilekitError if it cannot begin.
    """
    import wandb  # takes a second

    ids = sorted(path.name.partition("run-")[2] for path in (folder / "wandb").glob("*run-*-*"))  # 20260102_030405-ID
    try:
        run = wandb.init(
            dir=folder,
            id=ids[-1].partition("-")[2] if ids else None,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "pilekit"),
            name=folder.absolute().name,
            config=msgspec.to_builtins(config),
            reinit="create_new",  # a page that a notebook has open stays as it is
            settings=wandb.Settings(console="off", finish_timeout=UPLOAD_SECONDS),
        )
    except (wandb.Error, OSError) as error:
        raise PilekitError(
            f"log.wandb = true: {shortened(error, 200).rstrip('.')}; set WANDB_MODE=offline, or log.wandb = false"
        ) from error
    shown = run.step  # the first step that the page lacks

    def add(numbers: dict[str, float], step: int) -> None:
        if step >= shown:
            run.log(numbers, step=step)

    return _viewer(add, run.finish, "wandb", "Weights & Biases")


def _not_written(where: str, error: Exception) -> str:
    why = (isinstance(error, OSError) and error.strerror) or str(error)
    return f"{where}: cannot be written: {shortened(why, 200).rstrip('.')}"
