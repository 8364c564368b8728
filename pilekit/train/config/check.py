"""`check` refuses a config that no run can use. `check_world` refuses a number of ranks.

Both run before anything is read or written, and raise at the first wrong value. Other errors show only with the data or
the model, such as missing shards or a model too small for its tokenizer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import msgspec

from pilekit.artifacts.checked import checked, either, paths_as_text, shown
from pilekit.artifacts.settings import TEXT
from pilekit.corpus import Manifest, load_manifest
from pilekit.display.wrong_names import nearest_of
from pilekit.errors import PilekitError, counted
from pilekit.models.presets import MASKED_PRESETS, PRESETS
from pilekit.train.config.sections import SECTIONS, DataConfig, TrainConfig, fields, values
from pilekit.train.step.schedule import most_warmup

MOST_RANKS = 2**16
"""Larger world sizes are not listed."""
NEEDED = {"torch": (2, 13), "transformers": (5, 0)}
"""The oldest versions that `train` runs with. The other parts run with older ones, which pyproject.toml names."""


def check_versions() -> None:
    """Raise PilekitError if torch or transformers is too old to train. Neither is imported."""
    for name, needed in NEEDED.items():
        installed = version(name)
        if tuple(map(int, re.findall(r"\d+", installed)[:2])) < needed:
            raise PilekitError(f"train needs {name} {needed[0]}.{needed[1]} or later; {installed} is installed")


def check(config: TrainConfig) -> None:
    """Raise PilekitError for a config that no run can use, naming the field, its value and the values it may have.

    Each single value has passed `checked_field` already. A config without a model passes, because `Trainer` may get a
    model object.
    """
    by_field = dict(values(config))
    _check_sources(config)
    for name, holds, rule in _rules(config):
        if not holds:
            raise wrong(name, by_field[name], rule)


def checked_field(name: str, value: Any) -> Any:
    """`value` as the type of the field `name`. Raises PilekitError if it is of another type or out of range."""
    section, _, field = name.partition(".")
    try:
        return checked(paths_as_text(value), fields(section)[field], name)
    except PilekitError as error:
        if ", got " not in str(error.__cause__):
            raise
        raise PilekitError(f"{error}; for example {_example(name)}") from None


_EXAMPLES = {
    "subsets": '["ArXiv", "GitHub"]',
    "plant": '[{file = "canary.jsonl", copies = [1, 4], from = 100, to = 900}]',
    "path": '"data"',
    "dict[": "{ArXiv = 2.5, GitHub = 1}",
    "schedule": "[{step = 0, weights = {ArXiv = 1, GitHub = 1}}]",
    "tuple[": "[10, 20]",
    "list[": '["name"]',
    "int": "100",
    "": '"name"',
}
"""Examples for fields without a default, as TOML. The first key that is in the field's name and type counts."""


def _example(name: str) -> str:
    """A right value of the field `name`, as TOML: its default, if it has one."""
    section, _, field = name.partition(".")
    default = next(info.default for info in msgspec.structs.fields(SECTIONS[section]) if info.name == field)
    hint = f"{field} {fields(section)[field]!r}"
    return shown(default) if default is not None else next(_EXAMPLES[part] for part in _EXAMPLES if part in hint)


def wrong(name: str, value: Any, rule: str) -> PilekitError:
    """The error of a field whose value breaks a rule."""
    return PilekitError(f"{name} = {shown(value)}: {rule}")


def check_model(config: TrainConfig, model: object = None) -> None:
    """Raise PilekitError unless there is one model: the object `model`, or the model that `[model]` names."""
    named = _named_models(config)
    if model is not None and named:
        raise wrong(f"model.{named[0]}", getattr(config.model, named[0]), "a model object is given too; leave one out")
    if model is not None and config.model.freeze:
        raise wrong("model.freeze", config.model.freeze, "set requires_grad of the model object's parameters instead")
    if model is None and not named:
        raise PilekitError(
            "model has neither preset nor config nor path nor from_teacher: give exactly one of them, such as preset = "
            f'"{next(iter(PRESETS))}", or give `Trainer` a model object'
        )


def _named_models(config: TrainConfig) -> list[str]:
    return [name for name in ("preset", "config", "path", "from_teacher") if getattr(config.model, name) is not None]


def _check_sources(config: TrainConfig) -> None:
    """Refuse a config without a tokenizer or a length, or with two lengths or two models."""
    if len(named := _named_models(config)) > 1:
        raise PilekitError(f"model has {' and '.join(named)}: give exactly one of them")
    if config.data.tokenizer is None and config.model.path is None and config.model.from_teacher is None:
        raise PilekitError(
            "data.tokenizer is missing: give a tokenizer.json or a folder with one (only a model.path brings its own)"
        )
    if (config.train.steps is None) == (config.train.tokens is None):
        have = "neither steps nor" if config.train.steps is None else "both steps and"
        raise PilekitError(f"train has {have} tokens: give one, the number of optimizer steps or of tokens in all")


def _rules(config: TrainConfig) -> Iterator[tuple[str, bool, str]]:
    """(field, whether its value is possible, the rule) for every rule between several fields."""
    data, model, teacher, train, schedule = config.data, config.model, config.teacher, config.train, config.schedule
    parallel, precision, profile = config.parallel, config.precision, config.log.profile
    steps, rows, is_mlm = config.steps, train.global_batch_size, train.objective == "mlm"
    for name, paths in (("data.path", data.path), ("train.eval_path", train.eval_path)):
        are_paths = all(
            path != "-" and re.fullmatch(TEXT, path) for path in ([paths] if isinstance(paths, str) else paths or ())
        )
        yield name, are_paths, 'must be paths, but not "-", because standard input cannot be read again to resume a run'
    rule = "the mixture is data.weights or [[data.schedule]]; leave one out, or give the first table a later step"
    yield "data.weights", data.weights is None or data.schedule is None or data.schedule[0].step > 0, rule
    if model.preset is not None:
        yield "model.preset", model.preset in PRESETS, nearest_of(model.preset, PRESETS)
        presets = [name for name in PRESETS if (name in MASKED_PRESETS) == is_mlm]
        rule = f'with train.objective = "{train.objective}" it must be {either(presets)}'
        yield "model.preset", model.preset in presets, rule
    yield "model.from_teacher", model.from_teacher is None or teacher.path is not None, "needs teacher.path"
    yield "model.adapter", model.adapter is None or model.path is not None, "needs model.path, whose adapter it is"
    rule = "cannot be the base of other adapters; train it without lora.rank, or merge it first"
    yield "model.adapter", model.adapter is None or not config.lora.rank, rule
    rule = "needs teacher.path, whose adapter it is"
    yield "teacher.adapter", teacher.adapter is None or teacher.path is not None, rule
    rule = "teaches nothing, because teacher.kl and teacher.cosine are 0; give one a weight, or leave the teacher out"
    yield "teacher.path", teacher.path is None or teacher.kl + teacher.cosine > 0, rule
    fast = model.attention_implementation
    rule = 'with train.objective = "mlm" it must be "auto" or "sdpa"'
    yield "model.attention_implementation", fast in ("auto", "sdpa") or not is_mlm, rule
    rule = 'needs precision.dtype = "bf16" or "fp16"'
    yield "model.attention_implementation", fast != "flash_attention_2" or precision.dtype != "fp32", rule
    lora = config.lora
    rule = "adapts a trained model: give model.path, or set it to 0"
    yield "lora.rank", not lora.rank or (model.preset is None and model.config is None), rule
    for name, is_given in (("lora.targets", lora.targets is not None), ("lora.merge", lora.merge)):
        yield name, bool(lora.rank) or not is_given, "needs lora.rank, such as 8"
    rule = f"must divide train.global_batch_size = {rows}"
    yield "train.micro_batch_size", rows % train.micro_batch_size == 0, rule
    yield "data.lanes", data.lanes == "auto" or rows % data.lanes[0] == 0, f"its rows {rule}"
    possible = "document", "row" if is_mlm else "causal"
    rule = f'with train.objective = "{train.objective}" it must be {either(possible)}'
    yield "data.attention", data.attention in possible, rule
    rule = 'bits per byte need a causal model; with train.objective = "mlm" it must be 0'
    yield "train.eval_every", not (is_mlm and train.eval_every), rule
    rule = 'only causal models continue a text; with train.objective = "mlm" it must be 0'
    yield "log.samples_every", not (is_mlm and config.log.samples_every), rule
    rule = "needs log.samples_every, such as 100"
    yield "log.samples_prompts", config.log.samples_prompts is None or config.log.samples_every > 0, rule

    most = most_warmup(steps, schedule)
    falling = steps - most
    why = f", because the rate falls in the last {falling} of {steps}" if falling else ""
    rule = f"must be at most {counted(most, 'step')}{why}"
    yield "schedule.warmup", schedule.warmup <= most, rule
    lr = config.optimizer.lr
    yield "schedule.min_lr", schedule.min_lr <= lr, f"must be at most optimizer.lr = {lr}"
    rule = f'"exponential" never reaches 0; give a higher rate, such as {lr / 100:g}'
    yield "schedule.min_lr", schedule.kind != "exponential" or schedule.min_lr > 0, rule

    rule = "needs parallel.zero = 1, 2 or 3, because stage 0 leaves the model whole"
    yield "parallel.offload", not parallel.offload or parallel.zero > 0, rule
    yield "parallel.shard", parallel.shard is None or parallel.zero > 0, rule
    rule = "needs parallel.offload = false, because the ranks gather matrices where they compute"
    yield "optimizer.name", config.optimizer.name == "adamw" or not parallel.offload, rule
    rule = f"must be at least precision.loss_scale_floor = {precision.loss_scale_floor}"
    yield "precision.loss_scale", precision.loss_scale >= precision.loss_scale_floor, rule
    rule = f"must be the first and the last step, of at most {steps}"
    yield "log.profile", profile is None or profile[0] <= profile[1] <= steps, rule
    yield from _backend_rules(config)


def _backend_rules(config: TrainConfig) -> Iterator[tuple[str, bool, str]]:
    """Settings that the engines around other packages cannot run."""
    parallel, dtype = config.parallel, config.precision.dtype
    if parallel.backend == "native":
        rule = 'needs parallel.backend = "deepspeed" or "accelerate", whose file it is'
        yield "parallel.backend_config", parallel.backend_config is None, rule
        return
    possible: dict[str, tuple[Any, ...]] = {
        "train.objective": ("clm",),
        "teacher.path": (None,),
        "lora.rank": (0,),
        "model.freeze": (None,),
        "model.attention_implementation": ("auto", "sdpa"),
        "train.ema": (0,),
        "parallel.shard": (None,),
        "optimizer.name": ("adamw",),
        "parallel.activation_checkpoint": ("none",),
        "parallel.compile": (False,),
        "precision.dtype": ("fp32", "bf16"),
    }
    if parallel.backend == "accelerate":
        possible |= {"parallel.zero": (0, 2, 3), "parallel.offload": (False,)}
    else:
        if dtype == "bf16":  # DeepSpeed's stage 0 sums gradients in bfloat16
            possible["parallel.zero"] = (1, 2, 3)
        if parallel.zero == 3:
            possible |= {"train.eval_every": (0,), "log.samples_every": (0,)}
    by_field = dict(values(config))
    for name, choices in possible.items():
        rule = f'with parallel.backend = "{parallel.backend}" it must be {either(choices)}; "native" can do more'
        yield name, by_field[name] in choices, rule


def check_world(config: TrainConfig, world_size: int) -> None:
    """Raise PilekitError, with numbers that would fit, if `world_size` ranks cannot share the steps of `config`.

    Lanes that the stream chooses for itself are checked when it opens.
    """
    shard = config.parallel.shard
    if shard and world_size % shard:
        raise wrong("parallel.shard", shard, f"must divide the number of ranks, {world_size}, into groups")
    sizes = world_sizes(config)
    if world_size not in sizes:
        train, lanes = config.train, config.data.lanes
        how = f"in micro-batches of {counted(train.micro_batch_size, 'row')}"
        how += "" if lanes == "auto" else f" and data.lanes of {counted(lanes[0], 'row')}"
        fitting = ", ".join(map(str, sizes[:20]))
        rule = f"{world_size} ranks cannot share it {how}; run as many as {fitting}, or change these numbers"
        raise wrong("train.global_batch_size", train.global_batch_size, rule)


def world_sizes(config: TrainConfig) -> list[int]:
    """The numbers of ranks that can share the steps of `config`, increasing."""
    train, lanes = config.train, config.data.lanes
    parts = train.global_batch_size // train.micro_batch_size
    shared = parts if lanes == "auto" else math.gcd(parts, lanes[0])
    group = config.parallel.shard or 1
    return [ranks for ranks in range(group, min(shared, MOST_RANKS) + 1, group) if shared % ranks == 0]


@contextmanager
def naming_field(name: str) -> Iterator[None]:
    """Prefix errors with the field's name."""
    try:
        yield
    except PilekitError as error:
        raise PilekitError(f"{name}: {error}" if name else str(error)) from error


def field_of(setting: str, data: DataConfig | None = None) -> str:
    """The field of a config that is a setting of `PileStream`; empty for a setting that no field gives."""
    if setting == "weights" and data is not None and data.schedule is not None:
        return "data.schedule"
    if setting in fields("data"):
        return f"data.{setting}"
    return f"train.{setting}" if setting in fields("train") else ""


def manifest_of(data: DataConfig) -> Manifest:
    """The manifest of `[data]`, or that of its `text_field` and `label`. A PilekitError names the field."""
    from pilekit.stream.read.token_files import token_files  # imports pyarrow

    names = [name for name in ("text_field", "label") if getattr(data, name) is not None]
    paths = [data.path] if isinstance(data.path, str) else data.path or []
    if names and any(map(token_files, paths)):
        raise PilekitError(f"data.{names[0]}: token files have no fields; leave it out")
    with naming_field("data" if data.manifest is None else "data.manifest"):
        return load_manifest(data.manifest, text_field=data.text_field, label=data.label)
