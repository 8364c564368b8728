"""`check`: everything that can be wrong with a config, wherever it came from.

It runs before anything is read or written, and stops at the first value that no run can have. What only the data or the
model can tell (shards that are not there, a model too small for its tokenizer) is not its business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from pilekit.errors import PilekitError
from pilekit.train.config.sections import SECTIONS, TrainConfig, fields
from pilekit.train.config.text import closest, shown, typed, wrong
from pilekit.train.presets import PRESETS

LONGEST_ROW = 2**20
"""More tokens than any model has positions; a typing error must not ask for all of the memory."""
LARGEST_INTEGER = 2**53
"""The largest whole number a config may hold: every reader of JSON has it exactly."""


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
            _check_value(name, value)
    _check_together(config)


def _check_value(name: str, value: Any) -> None:
    """What can be said of one value without the others."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and (not text or re.search("[\0\ud800-\udfff]", text)):
            raise wrong(name, value, "it must be text that is not empty, in UTF-8 and without null characters")
    if value == []:
        raise wrong(name, value, "it must name something; leave it out to take what is the default")
    if isinstance(value, int) and value > LARGEST_INTEGER:
        raise wrong(name, value, f"it must be at most {LARGEST_INTEGER} (2^53)")
    for number in value if isinstance(value, tuple) else [value]:
        if isinstance(number, float) and not (math.isfinite(number) or (name == "train.clip_norm" and number > 0)):
            raise wrong(name, value, "it must be finite" if name != "train.clip_norm" else "it must be above 0")
    if name in _RULES:
        holds, rule = _RULES[name]
        if not holds(value):
            raise wrong(name, value, f"it must be {rule}")


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "data.seq_len": (lambda tokens: 2 <= tokens <= LONGEST_ROW, f"2 to {LONGEST_ROW}: one token predicts nothing"),
    "data.seed": (lambda seed: seed >= 0, "at least 0"),
    "data.path": (
        lambda path: "-" not in ([path] if isinstance(path, str) else path or []),
        "files, because standard input cannot be read again when a run is continued",
    ),
    "train.steps": (lambda steps: steps >= 1, "at least 1"),
    "train.global_batch_size": (lambda rows: rows >= 1, "at least 1"),
    "train.micro_batch_size": (lambda rows: rows >= 1, "at least 1"),
    "train.clip_norm": (lambda norm: norm > 0, "above 0; inf clips nothing"),
    "train.seed": (lambda seed: seed >= 0, "at least 0"),
    "optimizer.lr": (lambda lr: lr > 0, "above 0"),
    "optimizer.betas": (lambda betas: all(0 <= beta < 1 for beta in betas), "two numbers from 0 to below 1"),
    "optimizer.eps": (lambda eps: eps > 0, "above 0"),
    "optimizer.weight_decay": (lambda decay: decay >= 0, "at least 0"),
    "schedule.warmup": (lambda steps: steps >= 0, "at least 0"),
    "schedule.min_lr": (lambda lr: lr >= 0, "at least 0"),
    "checkpoint.every": (lambda steps: steps >= 1, "at least 1"),
    "checkpoint.keep_last": (lambda count: count >= 1, "at least 1"),
    "log.every": (lambda steps: steps >= 1, "at least 1"),
}
"""Per field: whether it may have a value of its type, and what it must be."""


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
    train, schedule = config.train, config.schedule
    if train.global_batch_size % train.micro_batch_size:
        fits = math.gcd(train.global_batch_size, train.micro_batch_size)
        remedy = f"it must divide train.global_batch_size = {train.global_batch_size}, as {fits} does"
        raise wrong("train.micro_batch_size", train.micro_batch_size, remedy)
    if schedule.warmup > train.steps:
        raise wrong("schedule.warmup", schedule.warmup, f"it must be at most train.steps = {train.steps}")
    if schedule.min_lr > config.optimizer.lr:
        raise wrong("schedule.min_lr", schedule.min_lr, f"it must be at most optimizer.lr = {config.optimizer.lr}")
