"""`check` refuses a config that no run can have; `check_world` refuses a number of ranks.

Both run before anything is read or written, and raise at the first wrong value. Only the data or the model can show
other errors, such as missing shards or a model too small for its tokenizer.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from pilekit.errors import PilekitError, visible
from pilekit.train.config.sections import SECTIONS, TEXT, TrainConfig, fields, values
from pilekit.train.model.presets import PRESETS
from pilekit.train.step.schedule import decay_steps

MOST_RANKS = 2**16
"""Larger world sizes are not listed."""


def check(config: TrainConfig) -> None:
    """Raise PilekitError for a config that no run can have, naming the field, its value and the values it may have.

    Types are checked too, because a config made in Python was not read from a file.
    """
    for section, kind in SECTIONS.items():
        if type(getattr(config, section)) is not kind:
            raise PilekitError(
                f"{section} must be a {kind.__name__}, not {visible(repr(getattr(config, section)), 100)}"
            )
    held = dict(values(config))
    for name, value in held.items():
        converted = typed(name, value)
        if isinstance(converted, list | tuple) and type(converted) is not type(value):
            raise wrong(name, value, f"must be a {type(converted).__name__}")
    _check_sources(config)
    for name, rule in _broken_rules(config):
        raise wrong(name, held[name], rule)


def typed(name: str, value: Any) -> Any:
    """`value` as the type of the field `name`; PilekitError if it is of another type or out of range."""
    section, _, field = name.partition(".")
    hint = fields(section)[field]
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        rule, _, _ = str(error).partition(" - at ")
        choices = [
            choice for part in (hint, *get_args(hint)) if get_origin(part) is Literal for choice in get_args(part)
        ]
        raise wrong(name, value, f"must be {_either(choices)}" if "enum" in rule else rule) from None


def wrong(name: str, value: Any, rule: str) -> PilekitError:
    """The error of a field whose value breaks a rule."""
    return PilekitError(f"{name} = {shown(value)}: {rule}")


def shown(value: Any) -> str:
    """A value in one printable line, for messages."""
    if value is None:
        return "(not given)"
    try:
        return visible(json.dumps(value, ensure_ascii=False, default=str), 100)
    except ValueError:  # Python prints no integers of thousands of digits
        return "(too many digits)"


def closest(name: str, names: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """The name that was probably meant, preferably from `elsewhere`, and all `names`."""
    names = list(names)
    near = [*elsewhere, *difflib.get_close_matches(name.lower(), names, n=1)]
    return (f'did you mean "{near[0]}"? ' if near else "") + f"There are {', '.join(names)}"


def _either(choices: Iterable[Any]) -> str:
    return " or ".join(map(shown, choices))


def _check_sources(config: TrainConfig) -> None:
    """Refuse a config that lacks its model, tokenizer or length, or has two of them."""
    given = [name for name in ("preset", "config", "path") if getattr(config.model, name) is not None]
    if len(given) != 1:
        raise PilekitError(
            f"model has {' and '.join(given) if given else 'neither preset nor config nor path'}: give exactly one of "
            f'the three, such as preset = "{next(iter(PRESETS))}"'
        )
    if config.data.tokenizer is None and config.model.path is None:
        raise PilekitError(
            "data.tokenizer is missing: give a tokenizer.json or a folder with one (only a model.path brings its own)"
        )
    if (config.train.steps is None) == (config.train.tokens is None):
        have = "neither steps nor" if config.train.steps is None else "both steps and"
        raise PilekitError(f"train has {have} tokens: give one, the number of optimizer steps or of tokens in all")


def _broken_rules(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(field, rule) of every field that breaks a rule between several fields."""
    data, model, train, precision = config.data, config.model, config.train, config.precision
    for name, given in (("data.path", data.path), ("train.eval_path", train.eval_path)):
        for path in [given] if isinstance(given, str) else given or ():
            if path == "-" or not re.fullmatch(TEXT, path):
                yield name, 'must be paths, but not "-", because standard input cannot be read again to resume a run'
    if model.preset is not None and model.preset not in PRESETS:
        yield "model.preset", closest(model.preset, PRESETS)
    rows = train.global_batch_size
    if rows % train.micro_batch_size:
        fits = math.gcd(rows, train.micro_batch_size)
        yield "train.micro_batch_size", f"must divide train.global_batch_size = {rows}, as {fits} does"
    if data.lanes != "auto" and rows % data.lanes[0]:
        fits = math.gcd(rows, data.lanes[0])
        yield "data.lanes", f"its rows must divide train.global_batch_size = {rows}, as {fits} do"
    yield from _broken_by_objective(config)
    yield from _broken_by_schedule(config)
    yield from _broken_by_engine(config)
    if config.parallel.offload and config.parallel.zero == 0:
        yield "parallel.offload", "needs parallel.zero = 1, 2 or 3, because stage 0 leaves the model whole"
    if precision.loss_scale < precision.loss_scale_floor:
        yield "precision.loss_scale", f"must be at least precision.loss_scale_floor = {precision.loss_scale_floor}"
    if (profile := config.log.profile) is not None and not profile[0] <= profile[1] <= config.steps:
        yield "log.profile", f"must be the first and the last step, which may be at most {_last_step(config)}"


def _broken_by_objective(config: TrainConfig) -> Iterator[tuple[str, str]]:
    is_mlm = config.train.objective == "mlm"
    if config.data.attention == ("causal" if is_mlm else "row"):
        instead = "row" if is_mlm else "causal"
        rule = f'with train.objective = "{config.train.objective}" it must be "document" or "{instead}"'
        yield "data.attention", rule
    if is_mlm and config.model.preset is not None:
        rule = 'presets predict the next token; for train.objective = "mlm" give a model.config or a model.path'
        yield "model.preset", rule
    if is_mlm and config.train.eval_every:
        yield "train.eval_every", 'bits per byte need a causal model; with train.objective = "mlm" it must be 0'


def _broken_by_engine(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Settings that the adapters of other packages cannot run."""
    parallel, engine, dtype = config.parallel, config.parallel.engine, config.precision.dtype
    if engine == "native":
        return
    with_engine = f'with parallel.engine = "{engine}" it must be'
    stages: tuple[int, ...] = (0, 2, 3) if engine == "accelerate" else (0, 1, 2, 3)
    possible: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
        ("train.objective", config.train.objective, ("clm",)),
        ("parallel.zero", parallel.zero, stages),
        ("parallel.offload", parallel.offload, (False,) if engine == "accelerate" else (False, True)),
        ("parallel.activation_checkpoint", parallel.activation_checkpoint, ("none",)),
        ("parallel.compile", parallel.compile, (False,)),
        ("precision.dtype", dtype, ("fp32", "bf16")),
    )
    for name, value, choices in possible:
        if value not in choices:
            yield name, f'{with_engine} {_either(choices)}; "native" can do more'
    if engine == "deepspeed" and parallel.zero == 0 and dtype == "bf16":
        yield "parallel.zero", f"{with_engine} 1, 2 or 3 in bf16: stage 0 of DeepSpeed sums gradients in bfloat16"
    if engine == "deepspeed" and parallel.zero == 3 and config.train.eval_every:
        yield "train.eval_every", f"{with_engine} 0 in stage 3; score the model afterwards"


def _broken_by_schedule(config: TrainConfig) -> Iterator[tuple[str, str]]:
    schedule, lr = config.schedule, config.optimizer.lr
    if schedule.warmup > config.steps:
        yield "schedule.warmup", f"must be at most {_last_step(config)}"
    falling = decay_steps(config.steps, schedule.decay_share)
    if schedule.kind == "wsd" and schedule.warmup > config.steps - falling:
        rule = (
            f"must be at most {config.steps - falling}, because the rate falls in the last {falling} of {config.steps}"
        )
        yield "schedule.warmup", f"{rule} steps (schedule.decay_share = {schedule.decay_share})"
    if schedule.min_lr > lr:
        yield "schedule.min_lr", f"must be at most optimizer.lr = {lr}"
    if schedule.kind == "exponential" and schedule.min_lr == 0:
        yield "schedule.min_lr", f'"exponential" never reaches 0; give a higher rate, such as {lr / 100:g}'


def _last_step(config: TrainConfig) -> str:
    """The number of steps, and the field that sets it."""
    if config.train.steps is not None:
        return f"train.steps = {config.steps}"
    return f"{config.steps}, the steps that train.tokens = {config.train.tokens} make"


def check_world(config: TrainConfig, world_size: int) -> None:
    """Raise PilekitError, with numbers that would fit, if `world_size` ranks cannot share the steps of `config`.

    Lanes that the stream chooses for itself are checked when it opens.
    """
    sizes = world_sizes(config)
    if world_size in sizes:
        return
    train, lanes = config.train, config.data.lanes
    how = f"in micro-batches of {train.micro_batch_size} rows"
    if lanes != "auto":
        how += f" and data.lanes of {lanes[0]} rows"
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    fitting = f"{', '.join(map(str, sizes[:20]))} rank{'s' * (sizes != [1])}"
    rule = f"{ranks} cannot share it {how}; run {fitting}, or change these numbers"
    raise wrong("train.global_batch_size", train.global_batch_size, rule)


def world_sizes(config: TrainConfig) -> list[int]:
    """The numbers of ranks that can share the steps of `config`, increasing."""
    train, lanes = config.train, config.data.lanes
    parts = train.global_batch_size // train.micro_batch_size
    shared = parts if lanes == "auto" else math.gcd(parts, lanes[0])
    return [ranks for ranks in range(1, min(shared, MOST_RANKS) + 1) if shared % ranks == 0]
