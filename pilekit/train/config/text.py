"""How a value of a config is checked against its type, and how it and its type are spelt in an error."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from pilekit.errors import PilekitError, visible
from pilekit.train.config.sections import Files

SHOWN_CHARACTERS = 100


def typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type of the field `name` (a whole number where a number is asked for becomes one).

    PilekitError, naming what the field may hold, for anything else.
    """
    try:
        if isinstance(value, str) and hint == Files | None:
            msgspec.convert([value], hint)
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise wrong(name, value, f"it must be {described(hint)}") from None


def wrong(name: str, value: Any, remedy: str) -> PilekitError:
    """The error of a field that holds what it must not."""
    return PilekitError(f"{name} = {shown(value)}: {remedy}")


def shown(value: Any) -> str:
    """A value as TOML spells it, more or less, and safe to print; None, which TOML does not have, is `(not given)`."""
    if value is None:
        return "(not given)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{visible(value, SHOWN_CHARACTERS)}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value[:10])) + (", …]" if len(value) > 10 else "]")
    if isinstance(value, dict):
        pairs = [f"{shown(str(key))} = {shown(value[key])}" for key in list(value)[:10]]
        return "{" + ", ".join(pairs) + (", …}" if len(value) > 10 else "}")
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:  # str() refuses what has thousands of digits
        return "a number of more than a hundred digits"
    return visible(str(value) if isinstance(value, int | float) else repr(value), SHOWN_CHARACTERS)


def described(hint: Any) -> str:
    """The type of a field in words: `"constant" or "cosine"`, `a whole number from 1 to 2^53`."""
    if hint is bool:
        return "true or false"
    if get_origin(hint) is Literal:
        return " or ".join(map(shown, get_args(hint)))
    if get_origin(hint) in (types.UnionType, Union):
        return " or ".join(described(part) for part in get_args(hint) if part is not type(None))
    return str(hint.__metadata__[0].description)


def closest(name: str, names: Iterable[str], meant: Iterable[str] = ()) -> str:
    """What was probably meant, if `meant` does not say it, and all there is: `did you mean "steps"? There are ...`."""
    names = list(names)
    near = [*meant, *difflib.get_close_matches(name.lower(), names, n=1)]
    return (f'did you mean "{near[0]}"? ' if near else "") + f"There are {', '.join(names)}"
