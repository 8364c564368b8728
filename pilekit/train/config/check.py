"""`check`: everything that can be wrong with a config, wherever it came from; `check_world`: for a number of ranks.

They run before anything is read or written, and stop at the first value that no run can have. What only the data or the
model can tell (shards that are not there, a model too small for its tokenizer) is not their business.
"""

from __future__ import annotations

import math

from pilekit.errors import PilekitError
from pilekit.train.config.sections import SECTIONS, TrainConfig, fields
from pilekit.train.config.text import closest, shown, typed, wrong
from pilekit.train.model.presets import PRESETS
from pilekit.train.step.schedule import decay_steps

MOST_RANKS = 2**16
"""World sizes beyond this are not listed."""


def check(config: TrainConfig) -> None:
    """Raise PilekitError for a config that no run can have, naming the field, what it holds and what it may hold.

    Types are checked too, because a config made in Python has not gone through the reader of the file.
    """
    for section, kind in SECTIONS.items():
        if type(getattr(config, section)) is not kind:
            raise PilekitError(f"{section} = {shown(getattr(config, section))}: it must be a {kind.__name__}")
        for field, hint in fields(section).items():
            value = getattr(getattr(config, section), field)
            name = f"{section}.{field}"
            same = typed(name, value, hint)
            if isinstance(same, list | tuple) and type(value) is not type(same):
                raise wrong(name, value, f"it must be a {type(same).__name__}")
            numbers = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
            if name != "train.clip_norm" and not all(math.isfinite(n) for n in numbers if isinstance(n, float)):
                raise wrong(name, value, "it must be finite")
    _check_together(config)


def _check_together(config: TrainConfig) -> None:
    """What one value rules out for another."""
    given = [name for name in ("preset", "config", "path") if getattr(config.model, name) is not None]
    if len(given) != 1:
        raise PilekitError(
            f"model has {' and '.join(given) if given else 'neither preset nor config nor path'}: give exactly one of "
            f'the three, such as preset = "{next(iter(PRESETS))}"'
        )
    if config.model.preset is not None and config.model.preset not in PRESETS:
        raise wrong("model.preset", config.model.preset, closest(config.model.preset, PRESETS))
    if config.data.tokenizer is None and config.model.path is None:
        raise PilekitError(
            "data.tokenizer is missing: give a tokenizer.json or a folder with one (only a model.path brings its own)"
        )
    train = config.train
    if (train.steps is None) == (train.tokens is None):
        have = "neither steps nor" if train.steps is None else "both steps and"
        raise PilekitError(f"train has {have} tokens: give one, the number of optimizer steps or of tokens in all")
    if train.global_batch_size % train.micro_batch_size:
        fits = math.gcd(train.global_batch_size, train.micro_batch_size)
        remedy = f"it must divide train.global_batch_size = {train.global_batch_size}, as {fits} does"
        raise wrong("train.micro_batch_size", train.micro_batch_size, remedy)
    if config.data.lanes != "auto" and train.global_batch_size % config.data.lanes[0]:
        rows = math.gcd(config.data.lanes[0], train.global_batch_size)
        remedy = f"its rows must divide train.global_batch_size = {train.global_batch_size}, as {rows} do"
        raise wrong("data.lanes", config.data.lanes, remedy)
    _check_objective(config)
    _check_schedule(config)
    _check_engine(config)
    if config.parallel.offload and config.parallel.zero == 0:
        raise wrong("parallel.offload", True, "it needs parallel.zero = 1, 2 or 3, as stage 0 leaves the model whole")
    precision = config.precision
    if precision.loss_scale < precision.loss_scale_floor:
        remedy = f"it must be at least precision.loss_scale_floor = {precision.loss_scale_floor}"
        raise wrong("precision.loss_scale", precision.loss_scale, remedy)
    if (profile := config.log.profile) is not None:
        if profile[0] > profile[1]:
            raise wrong("log.profile", profile, "it must be the first step and the last, not before it")
        if profile[1] > config.steps:
            raise wrong("log.profile", profile, f"it must end by {_last_step(config)}")


def _check_objective(config: TrainConfig) -> None:
    """What "mlm" excludes, and "clm"."""
    is_mlm, attention = config.train.objective == "mlm", config.data.attention
    if attention == ("causal" if is_mlm else "row"):
        instead = "row" if is_mlm else "causal"
        remedy = f'with train.objective = "{config.train.objective}" it must be "document" or "{instead}"'
        raise wrong("data.attention", attention, remedy)
    if not is_mlm:
        return
    if config.model.preset is not None:
        remedy = 'presets predict the next token; for train.objective = "mlm" give a model.config or a model.path'
        raise wrong("model.preset", config.model.preset, remedy)
    if config.train.eval_every:
        remedy = 'bits per byte need a causal model; with train.objective = "mlm" it must be 0'
        raise wrong("train.eval_every", config.train.eval_every, remedy)


def _check_engine(config: TrainConfig) -> None:
    """What the adapters cannot do."""
    parallel, engine = config.parallel, config.parallel.engine
    if engine == "native":
        return
    own = f'with parallel.engine = "{engine}" it must be'
    for name, value, valid in (
        ("train.objective", config.train.objective, ("clm",)),
        ("parallel.zero", parallel.zero, (0, 2, 3) if engine == "accelerate" else (0, 1, 2, 3)),
        ("parallel.offload", parallel.offload, (False,) if engine == "accelerate" else (False, True)),
        ("parallel.activation_checkpoint", parallel.activation_checkpoint, ("none",)),
        ("parallel.compile", parallel.compile, (False,)),
        ("precision.dtype", config.precision.dtype, ("fp32", "bf16")),
    ):
        if value not in valid:
            raise wrong(name, value, f'{own} {" or ".join(map(shown, valid))}; "native" can do more')
    if engine == "deepspeed" and parallel.zero == 0 and config.precision.dtype == "bf16":
        remedy = f"{own} 1, 2 or 3 in bf16, because stage 0 of DeepSpeed adds gradients up in bfloat16"
        raise wrong("parallel.zero", 0, remedy)
    if engine == "deepspeed" and parallel.zero == 3 and config.train.eval_every:
        raise wrong("train.eval_every", config.train.eval_every, f"{own} 0 in stage 3; score the model afterwards")


def _check_schedule(config: TrainConfig) -> None:
    """What the schedule can do in these steps, and from this rate."""
    schedule, lr = config.schedule, config.optimizer.lr
    if schedule.warmup > config.steps:
        raise wrong("schedule.warmup", schedule.warmup, f"it must be at most {_last_step(config)}")
    if schedule.kind == "wsd":
        falling = decay_steps(config.steps, schedule.decay_share)
        if schedule.warmup > config.steps - falling:
            remedy = (
                f"it must be at most {config.steps - falling}, as the last {falling} of {config.steps} steps go down"
            )
            raise wrong("schedule.warmup", schedule.warmup, f"{remedy} (schedule.decay_share = {schedule.decay_share})")
    if schedule.min_lr > lr:
        raise wrong("schedule.min_lr", schedule.min_lr, f"it must be at most optimizer.lr = {lr}")
    if schedule.kind == "exponential" and schedule.min_lr == 0:
        raise wrong(
            "schedule.min_lr", 0.0, f'it must be above 0, which "exponential" never reaches; such as {lr / 100:g}'
        )


def _last_step(config: TrainConfig) -> str:
    """The number of steps, and where it comes from."""
    if config.train.steps is not None:
        return f"train.steps = {config.steps}"
    return f"{config.steps}, the steps that train.tokens = {config.train.tokens} make"


def check_world(config: TrainConfig, world_size: int) -> None:
    """Raise PilekitError if `world_size` ranks cannot share the steps of `config`, with the values that would fit.

    Only the stream can tell whether the lanes that it chooses for itself fit too.
    """
    train, rows = config.train, config.train.global_batch_size
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    if rows % world_size:
        raise wrong(
            "train.global_batch_size",
            rows,
            f"{ranks} cannot share it; give a multiple of {world_size}, such as "
            f"{-(-rows // world_size) * world_size}, or run {_listed(world_sizes(config))} ranks",
        )
    if rows // world_size % train.micro_batch_size:
        fits = math.gcd(rows // world_size, train.micro_batch_size)
        remedy = f"it must divide the {rows // world_size} rows of each of {ranks}, as {fits} does"
        raise wrong("train.micro_batch_size", train.micro_batch_size, remedy)
    if config.data.lanes != "auto" and config.data.lanes[0] % world_size:
        remedy = f"{ranks} cannot share {config.data.lanes[0]} rows of lanes; run {_listed(world_sizes(config))} ranks"
        raise wrong("data.lanes", config.data.lanes, f"{remedy}, or give a multiple of {world_size}")


def world_sizes(config: TrainConfig) -> list[int]:
    """The numbers of ranks that `check_world` passes, increasing, as far as there are machines for them."""
    train, lanes = config.train, config.data.lanes
    parts = train.global_batch_size // train.micro_batch_size
    shared = parts if lanes == "auto" else math.gcd(parts, lanes[0])
    return [ranks for ranks in range(1, min(shared, MOST_RANKS) + 1) if shared % ranks == 0]


def _listed(numbers: list[int]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1][:20])), str(numbers[-1]))))
