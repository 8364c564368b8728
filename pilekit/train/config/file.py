"""`load_config` makes a `TrainConfig` from a TOML file or dicts, and `--set`. `to_toml` writes it as TOML.

The written file has every field with a value, defaults included, and loads to an equal config.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from pilekit.artifacts.checked import typed_value
from pilekit.display.wrong_names import nearest_of
from pilekit.errors import PilekitError, counted, shortened
from pilekit.train.config.check import check, check_versions, checked_field, naming_field, wrong
from pilekit.train.config.sections import SECTIONS, Objective, TrainConfig, fields
from pilekit.train.step.schedule import most_warmup

logger = logging.getLogger(__name__)

_ALTERNATIVES = (("model.preset", "model.config", "model.path", "model.from_teacher"), ("train.steps", "train.tokens"))
"""A config has one field of each group, so `--set` with one field removes the file's others of its group."""
LARGEST_FILE = 2**20
"""Bytes. A config has some hundreds. A shard given by mistake must not be read whole."""


def load_config(
    source: str | Path | Mapping[str, Any] | TrainConfig, changes: Mapping[str, Any] | Sequence[str] = ()
) -> TrainConfig:
    """The config of `source` with `changes`, checked as a whole.

    `source` is a TOML file, its content as dicts ({"train": {"steps": 100}, ...}), or a config to be changed. Changes
    are values by field, {"train.steps": 50}, or lines as for `--set`, ["train.steps=50"]. The value of a line is TOML.
    Text needs no quotes there, and a list of names no brackets: `model.path=00/model`, `data.subsets=ArXiv,GitHub`. If
    the file's warmup does not fit into fewer steps, it is shortened in proportion, with a warning. Paths in a
    config may be `Path`s, and are relative to the current folder. PilekitError names the file or the changes, and the
    field that is wrong.
    """
    check_versions()  # here, because the error names no file
    is_file = isinstance(source, str | Path)
    place = name = str(source) if is_file else "config"
    by_field: dict[str, Any] = {}
    try:
        for section, table in _tables(source).items():
            _check_name("section", section, SECTIONS)
            if not isinstance(table, dict):
                raise PilekitError(f"{section} must be a section, which begins with [{section}]")
            for field, value in table.items():
                _check_name(f"key of {section}", field, fields(section))
                by_field[f"{section}.{field}"] = checked_field(f"{section}.{field}", value)
        place = by = "changes" if isinstance(changes, Mapping) else "--set"
        before, changed = _config(by_field).steps, set[str]()
        for change in changes.items() if isinstance(changes, Mapping) else changes:
            field, value = _change(change)
            for group in _ALTERNATIVES:
                for alternative in group if field in group and value is not None else ():
                    by_field.pop(alternative, None)
            by_field[field] = value
            changed.add(field)
        place = f"{name} with {by}" if changes else name
        if "schedule.warmup" not in changed:
            _shorten_warmup(by_field, before)
        check(config := _with_objective(_config(by_field)))
    except PilekitError as error:
        raise PilekitError(f"{place}: {error}") from None
    return config


def _config(by_field: Mapping[str, Any]) -> TrainConfig:
    """The config with these values by `section.field`, unchecked."""
    tables: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for field, value in by_field.items():
        section, _, key = field.partition(".")
        tables[section][key] = value
    sections: dict[str, Any] = {section: kind(**tables[section]) for section, kind in SECTIONS.items()}
    return TrainConfig(**sections)


def _shorten_warmup(by_field: dict[str, Any], before: int) -> None:
    """Shorten the warmup in proportion if it fits the `before` steps of the file, and not the fewer steps of changes.

    Any other warmup stays, so that a longer run, or one that resumes with more steps, has the same rates as before.
    """
    config = _config(by_field)
    warmup, steps, schedule = config.schedule.warmup, config.steps, config.schedule
    if most_warmup(steps, schedule) < warmup <= most_warmup(before, schedule):
        by_field["schedule.warmup"] = min(warmup * steps // before, most_warmup(steps, schedule))
        logger.warning(
            "schedule.warmup = %d instead of %d, in proportion to %s instead of %s; set it to have another",
            by_field["schedule.warmup"],
            warmup,
            counted(steps, "step"),
            f"{before:,}",
        )


def _with_objective(config: TrainConfig) -> TrainConfig:
    """The config with the objective of its teacher for "distill"."""
    if config.train.objective != "distill":
        return config
    if config.teacher.path is None:
        raise wrong("train.objective", "distill", "needs teacher.path")
    from pilekit.models.load import MASKED, kind_of  # imports torch, which takes seconds

    with naming_field("teacher.path"):
        objective: Objective = "mlm" if kind_of(config.teacher.path) is MASKED else "clm"
    return msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, objective=objective))


def to_toml(config: TrainConfig) -> str:
    """The whole config as TOML, defaults included, without fields that have no value."""
    return tomli_w.dumps(_tables(config))


def _tables(source: str | Path | Mapping[str, Any] | TrainConfig) -> dict[str, Any]:
    """The sections of a config, without fields that have no value."""
    if isinstance(source, str | Path):
        return _read(source)
    tables = dict(_as_dict(source))
    for section, table in tables.items():
        if isinstance(table := _as_dict(table), Mapping):
            tables[section] = {field: _plain(value) for field, value in table.items() if value is not None}
    return tables


def _as_dict(value: Any) -> Any:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value


def _plain(value: Any) -> Any:
    """A field's value; tables in a list as dicts, with the names of their keys in a file."""
    if not isinstance(value, list):
        return value
    return [msgspec.to_builtins(item) if isinstance(item, msgspec.Struct) else item for item in value]


def _read(path: str | Path) -> dict[str, Any]:
    """The tables of the file."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: the path has a null character
        raise PilekitError(f"cannot be read ({getattr(error, 'strerror', error)}); give a TOML file") from error
    if len(raw) > LARGEST_FILE:
        raise PilekitError(f"is larger than {LARGEST_FILE:,} bytes; give the TOML file of a config")
    try:
        return tomllib.loads(raw.decode("utf-8-sig").replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or brackets nested too deeply
        raise PilekitError(f"is not TOML: {shortened(error, 200)}") from None


def _change(change: str | tuple[str, Any]) -> tuple[str, Any]:
    """(field, typed value) of the line `section.field=value`, or of a field and its value."""
    name, equals, text = change.partition("=") if isinstance(change, str) else (change[0], "=", "")
    section, dot, field = name.strip().partition(".")
    if not equals or not dot:
        shown = change if isinstance(change, str) else name
        raise PilekitError(f"{shortened(shown, 100)}: must be section.field=value, such as train.steps=50")
    _check_name("section", section, SECTIONS)
    _check_name(f"key of {section}", field, fields(section))
    name = f"{section}.{field}"
    if not isinstance(change, str):
        return name, checked_field(name, change[1])
    value = typed_value(text)
    # A number or a date may be text without its quotes, and a list of names the names with commas.
    candidates = (value,) if isinstance(value, str | list | dict) else (value, text)
    names = value.split(",") if isinstance(value, str) and not value.startswith("[") else []
    for candidate in (*candidates, [name.strip() for name in names]):
        with suppress(PilekitError):
            return name, checked_field(name, candidate)
    return name, checked_field(name, value)  # raises


def _check_name(kind: str, name: str, names: dict[str, Any]) -> None:
    """Raise PilekitError, with the name that was probably meant, if `name` is not among `names`."""
    if name not in names:
        raise PilekitError(f'unknown {kind}, "{shortened(name, 60)}"; {nearest_of(name, names)}')
