"""`load_config` and `to_toml`: a `TrainConfig` from a TOML file and `--set`, and back.

Reading is strict and says all it can: the line of a syntax error, the closest name to an unknown one, what a field may
hold. What `to_toml` writes has every field that has a value, defaults included, and loads again to an equal config.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from pilekit.errors import PilekitError, visible
from pilekit.train.config.check import check
from pilekit.train.config.sections import SECTIONS, TrainConfig, fields
from pilekit.train.config.text import closest, described, typed, wrong

_INSTEAD = {
    "model.preset": ("config", "path"),
    "model.config": ("preset", "path"),
    "model.path": ("preset", "config"),
    "train.steps": ("tokens",),
    "train.tokens": ("steps",),
}
"""Per field: those of the file's section whose place it takes if it comes with `--set`."""
LARGEST_FILE = 2**20
"""Bytes; a config is some hundreds of them, and a shard given by mistake should not be read whole."""


def load_config(path: str | Path, changes: Sequence[str] = ()) -> TrainConfig:
    """The config in the file at `path`, after `changes` such as "train.steps=50", checked as a whole.

    The value of a change is TOML; what is no TOML, or a number or date where the field holds text, is taken as
    text, so `model.path=00/model` needs no quotes. Paths in a config are relative to the current folder.
    PilekitError names the file, or `--set`, and the field for everything that is wrong.
    """
    tables = _tables(path)
    with _of(visible(str(path))):
        found = _typed_fields(tables)
    with _of("--set"):
        for change in changes:
            section, field, value = _change(change)
            for other in _INSTEAD.get(f"{section}.{field}", ()):
                found[section].pop(other, None)
            found[section][field] = value
    with _of(visible(str(path)) + (" with --set" if changes else "")):
        sections: dict[str, Any] = {section: kind(**found[section]) for section, kind in SECTIONS.items()}
        config = TrainConfig(**sections)
        check(config)
    return config


def to_toml(config: TrainConfig) -> str:
    """All of the config as TOML, defaults included; what has no value is left out."""
    return tomli_w.dumps(
        {
            section: {field: value for field, value in table.items() if value is not None}
            for section, table in msgspec.to_builtins(config).items()
        }
    )


@contextmanager
def _of(place: str) -> Iterator[None]:
    """Put the place before the message of an error."""
    try:
        yield
    except PilekitError as error:
        raise PilekitError(f"{place}: {error}") from None


def _tables(path: str | Path) -> dict[str, Any]:
    """The file as TOML has it."""
    name = visible(str(path))
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise PilekitError(f"{name}: no such file; check the path") from None
    except IsADirectoryError:
        raise PilekitError(f"{name}: is a folder; give the TOML file of a config") from None
    except (OSError, ValueError) as error:  # the latter: a null character in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise PilekitError(f"{name}: cannot be read: {why}") from error
    if len(raw) > LARGEST_FILE:
        raise PilekitError(f"{name}: is larger than {LARGEST_FILE:,} bytes; give the TOML file of a config")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + raw.count(b"\n", 0, error.start)
        raise PilekitError(f"{name}, line {line}: is not UTF-8; save it as UTF-8") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at ")
    except (ValueError, RecursionError):
        raise PilekitError(f"{name}: has a number of too many digits or too many brackets in each other") from None
    told = re.search(r"line (\d+)", place)
    line = int(told[1]) if told else 1 + text.rstrip().count("\n")  # else it says "at end of document"
    raise PilekitError(f"{name}, line {line}: is not TOML: {visible(reason, 200)}")


def _typed_fields(tables: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By section, every field that is given, as its type."""
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, table in tables.items():
        if section in SECTIONS and not isinstance(table, dict):
            raise wrong(section, table, f"it must be a section, which begins with [{section}]")
        if section not in SECTIONS:
            raise _unknown(section)
        for field, value in table.items():
            found[section][field] = typed(f"{section}.{field}", value, _type_of(section, field))
    return found


def _change(change: str) -> tuple[str, str, Any]:
    """(section, field, typed value) of `section.field=value`."""
    name, equals, text = change.partition("=")
    section, dot, field = name.strip().partition(".")
    if not equals or not dot:
        raise PilekitError(f"{visible(change, 100)}: it must be section.field=value, such as train.steps=50")
    hint = _type_of(section, field)
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    values = [parsed["value"]] if parsed.keys() == {"value"} else [text]
    if not isinstance(values[0], str | list | dict):
        values.append(text)
    for value in values:
        with suppress(PilekitError):
            return section, field, typed(f"{section}.{field}", value, hint)
    raise wrong(f"{section}.{field}", values[0], f"it must be {described(hint)}")


def _type_of(section: str, field: str) -> Any:
    """The type of a field; PilekitError, with what was probably meant, if there is none of that name."""
    if section not in SECTIONS:
        raise _unknown(section)
    if field not in fields(section):
        raise _unknown(section, field)
    return fields(section)[field]


def _unknown(section: str, field: str | None = None) -> PilekitError:
    """The error of a name that no config has, with what was probably meant."""
    if field is None:
        given, name, names = f'section "{visible(section, 60)}"', section, list(SECTIONS)
    else:
        given, name, names = f"key {section}.{visible(field, 60)}", field, list(fields(section))
    elsewhere = [f"{other}.{name}" for other in SECTIONS if name in fields(other)]
    return PilekitError(f"unknown {given}: {closest(name, names, elsewhere)}")
