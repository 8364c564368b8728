"""The start of a run: which config may begin, resume or branch in which folder.

A run resumes only with a config under which its checkpoint means the same. `FIXED` lists these fields: the model, how
documents become rows and which tokens a token attends to, the objective, the seed of each step, and the betas of the
optimizer's running means. Any other field (steps, learning rate, ZeRO stage, precision, micro-batches, ...) may change;
a change is logged. Shards, manifest, tokenizer, subsets, repeats, window and lanes are not compared here: the stream's
state holds fingerprints of their content and refuses others.

If `checkpoint.resume` is the path of another run's checkpoint, a new run branches from it: it begins with the whole
state of that run, and its own config counts from there on. The same fields are fixed, but for those of `BRANCH_MAY`.
A branch saves the state with which it begins as a checkpoint of its own and resumes from its own checkpoints, so the
same command can be repeated, and the other run may train on, remove that checkpoint, or be removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.checked import reason_of_damage, shown
from pilekit.artifacts.header import read_header, write_header
from pilekit.errors import PilekitError, counted, message_logger
from pilekit.train.branches import began, note_branch, origin_of
from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import TrainConfig, differences
from pilekit.train.run_folder import ALTERED, BEGAN_FROM, KIND, STARTS, RunFolder, check_folder, steps_in

logger = message_logger(__name__)

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

BRANCH_MAY = ("train.seed",)
"""The fields among them that a branch may change. Its weights are there, and the seed is that of each step alone."""

WEIGHTS_ALONE = "a new run can take its weights alone: give a model that was exported there as model.path"
"""What remains possible with a checkpoint that a config does not fit."""

_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def check_start(run: RunFolder, config: TrainConfig) -> None:
    """Raise PilekitError if `config` cannot be trained in `run`, as far as names and configs show; writes nothing.

    It refuses: a folder that is not a run; an existing run, if `checkpoint.resume` is "never" or another checkpoint
    than the one it began from; checkpoints in another folder; and checkpoints whose config does not fit.
    """
    name = str(run.path)
    check_folder(run, name)
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
    if resume not in ("auto", "never") and Path(resume).resolve().parent == run.checkpoints.resolve():
        field = "--out" if run.checkpoint_dir is None else "checkpoint.dir"
        raise PilekitError(
            f"checkpoint.resume = {shown(resume)}: {run.checkpoints} is the folder of that checkpoint's own run; name "
            f'another with {field}, or set it to "auto" to resume that run'
        )
    if resume not in ("auto", "never") and run.is_begun and began(run) != str(Path(resume).resolve()):
        raise PilekitError(
            f"checkpoint.resume = {shown(resume)}: {name} holds a run already, which did not begin from that "
            'checkpoint; name another folder with --out, or set it to "auto" to resume that run'
        )
    origin = origin_of(run, config)
    if origin is not None:
        given = f"{name}: {origin}" if resume == "auto" else f"checkpoint.resume = {shown(resume)}"
        _check_origin(origin, given, config)


def _check_dir(run: RunFolder, old: TrainConfig, config: TrainConfig) -> None:
    """Raise PilekitError if the run has checkpoints in the folder of its old config, and `config` names another."""
    before = run.path / "checkpoints" if old.checkpoint.dir is None else Path(old.checkpoint.dir)
    if run.newest_step() is None and before.absolute() != run.checkpoints.absolute() and steps_in(before):
        raise PilekitError(
            f"checkpoint.dir = {shown(config.checkpoint.dir)}: the run's checkpoints are in {before}; "
            "move them, or set that"
        )


def _check_origin(origin: Path, name: str, config: TrainConfig) -> None:
    """Raise PilekitError, which begins with `name`, unless a branch with `config` can begin from `origin`."""
    if not (origin / "state.json").is_file() or not _STEP.fullmatch(origin.resolve().name):
        if (origin / "config.json").is_file():
            raise PilekitError(
                f"{name}: is an exported model, without optimizer and place in the data; give the path of a step-N "
                "folder, or take its weights alone with model.path"
            )
        steps = steps_in(origin) or steps_in(origin / "checkpoints")
        near = f" there, such as step-{steps[-1]}" if steps else ""
        if not origin.exists():
            steps = steps_in(origin.parent)
            near = f", such as {shown(str(origin.with_name(f'step-{steps[-1]}')))}" if steps else ""
        raise PilekitError(f'{name}: is not a checkpoint; give the path of a step-N folder{near}, "auto" or "never"')
    old, step = _config_and_step(origin, name)
    check_resumable(old, config, origin)
    if step > config.steps:
        field = "train.tokens" if config.train.steps is None else "train.steps"
        raise PilekitError(
            f"{field}: {counted(config.steps, 'step')} in all, and {shown(str(origin))} has done {step:,}; steps and "
            "tokens count from the beginning of the run that it branches from, so give more"
        )


def _config_and_step(origin: Path, name: str) -> tuple[TrainConfig, int]:
    """The config of the checkpoint `origin` and its step. Raises PilekitError, which begins with `name`."""
    from pilekit.train.checkpoint.state_file import Damaged, read_state  # imports torch, which takes seconds

    try:
        state = read_state(origin)
        return msgspec.convert(state.config, TrainConfig, strict=False), state.progress.step  # "inf" becomes a number
    except (Damaged, msgspec.ValidationError) as error:
        raise PilekitError(f"{name}: is not a good checkpoint: {reason_of_damage(error)}; give another") from None


def take_config(
    run: RunFolder,
    config: TrainConfig,
    step: int | None,
    origin: Path | None = None,
    altered: Mapping[str, Any] | None = None,
) -> None:
    """Write `config`, which `check_start` has passed, as the run's config. Log what changed.

    step     the step of the checkpoint from which the run starts, or None if it has none and starts at the first step
    origin   that checkpoint, if it is another run's, which gets a note of this run
    altered  `PileStream.altered`, what differs from a run on the data as it is
    """
    name = str(run.path)
    old = None
    if origin is not None:
        old, _ = _config_and_step(origin, f"{name}: {origin}")
    elif step is not None and run.config_file.exists():
        old = load_config(run.config_file)
    elif step is None and run.is_begun:
        logger.warning("%s: has no checkpoint to resume from, so it starts over", name)
    how = "resumes" if origin is None else f"branches from {origin}"
    for field, before, after in [] if old is None else differences(old, config):
        if origin is None or not field.startswith("checkpoint."):
            logger.warning("%s: %s with %s = %s, which was %s", name, how, field, shown(after), shown(before))
    with write_atomically(run.config_file) as file:
        file.write(to_toml(config).encode())
    is_new = step is None or (origin is not None and not run.is_begun)
    results = {} if is_new else read_header(run.path, KIND).results
    results |= {STARTS: [*results.get(STARTS, []), step or 0]}
    if altered:
        results[ALTERED] = dict(altered)
    if origin is not None:
        results[BEGAN_FROM] = str(origin.resolve())
    write_header(run.path, kind=KIND, parameters={}, inputs={}, results=results)
    if origin is not None:
        note_branch(origin.resolve(), step or 0, run)


def check_resumable(old: TrainConfig, new: TrainConfig, origin: Path | None = None) -> None:
    """Raise PilekitError, naming the field and both values, if a checkpoint of `old` does not fit `new`.

    origin   the checkpoint, if `new` is the config of a branch
    """
    for field, before, after in differences(old, new):
        if field not in FIXED or _meaning(field, before) == _meaning(field, after):
            continue
        if origin is None:
            raise PilekitError(
                f"{field} = {shown(after)}: the run's checkpoint was made with {shown(before)}, and cannot resume with "
                "another value; set that, or name another folder with --out"
            )
        if field not in BRANCH_MAY:
            raise PilekitError(
                f"{field} = {shown(after)}: {shown(str(origin))} was made with {shown(before)}, and no branch of it "
                f"can have another value; set that; {WEIGHTS_ALONE}"
            )


def _meaning(field: str, value: Any) -> Any:
    """The value to compare: a path is made absolute."""
    if field in ("model.path", "model.adapter", "model.config") and value is not None:
        return Path(value).absolute()
    return value
