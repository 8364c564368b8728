"""Values that a person gives, checked against a type. An error names the field, its value, and the values it may have.

msgspec checks, but says only which bound was broken, in its own terms: "Expected `float` <= 1.0 - at `$.threshold`".
`checked` follows the place that it names through the value and the type, and describes the type that it finds there.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from pilekit.display.wrong_names import nearest_of
from pilekit.errors import PilekitError, shortened

T = TypeVar("T")

_OF_MSGSPEC = "Expected|Invalid|Number|Object"
"""How msgspec's own texts begin. Any other is of a class that checks itself."""


def checked(value: Any, kind: type[T] | Any, name: str = "") -> T:
    """`value` as the type `kind`; PilekitError for a wrong one, which calls the value as a whole `name`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise PilekitError(_explained(str(error), value, inspect.type_info(kind), name)) from error


def typed_value(text: str) -> Any:
    """The value that a person typed as TOML, such as `[1, 4]`; any other text is itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # brackets nested too deeply
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def paths_as_text(value: Any) -> Any:
    """The value with paths as text, also in lists and tables."""
    if isinstance(value, list | tuple):
        return [paths_as_text(item) for item in value]
    if isinstance(value, Mapping):
        return {name: paths_as_text(item) for name, item in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def reason_of_damage(error: BaseException) -> str:
    """Why a file of pilekit's own cannot be decoded, in words."""
    text, _, place = str(error).partition(" - at `")
    if isinstance(error, msgspec.ValidationError):
        if match := re.fullmatch(r"Object missing required field `(.*)`", text):
            return f'it has no "{match[1]}"'
        if not re.match(_OF_MSGSPEC, text):
            return shortened(text, 200)
        at = re.sub(r"^.*\$\.?", "", place.rstrip("`"))
        return shortened(f'its "{at}" has a wrong value' if at else "it holds something else", 200)
    if isinstance(error, msgspec.DecodeError):
        return "it is empty or cut off" if "truncated" in text else f"it is not {text.replace(' is malformed', '')}"
    return shortened(str(error).split("\n", 1)[0], 200)


def shown(value: Any) -> str:
    """A value in one line, for messages."""
    if value is None:
        return "(not given)"
    try:
        return shortened(json.dumps(value, ensure_ascii=False, default=_as_json), 100)
    except ValueError:  # Python prints no integers of thousands of digits
        return "(too many digits)"


def _as_json(value: object) -> object:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value)


def either(choices: Iterable[Any]) -> str:
    """The values as a choice: `1 or 2`."""
    return " or ".join(map(shown, choices))


def _explained(text: str, value: Any, info: Any, name: str) -> str:
    text, _, place = text.partition(" - at `")
    for field, item in re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", place):
        if field:
            info = next(entry.type for entry in _kind_with(info, "fields").fields if entry.encode_name == field)
            value, name = value[field], f"{name}.{field}".lstrip(".")
        else:
            items = _kind_with(info, "item_type", "item_types")
            info = items.item_types[int(item)] if hasattr(items, "item_types") else items.item_type
            value, name = value[int(item)], f"{name}[{item}]"
    if match := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"{name}.{match[1]}".lstrip(".") + " is missing"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        names = [entry.encode_name for entry in _kind_with(info, "fields").fields]
        return f'unknown field{f" of {name}" * bool(name)}, "{shortened(match[1], 60)}"; {nearest_of(match[1], names)}'
    before = f"{name} = {shown(value)}: " if name else ""
    if not re.match(_OF_MSGSPEC, text):
        return (f"{name}: " if name else "") + shortened(text, 300)
    return f"{before}must be {_described(info)}"


def _kind_with(info: Any, *attributes: str) -> Any:
    """The type itself, or the one of a union, that has one of these attributes."""
    kinds = info.types if isinstance(info, inspect.UnionType) else [info]
    return next(kind for kind in kinds if any(hasattr(kind, name) for name in attributes))


def _described(info: Any) -> str:
    """The values of a type, in words."""
    match info:
        case inspect.Metadata():
            about = (info.extra_json_schema or {}).get("description")
            return about or _described(info.type)
        case inspect.UnionType():
            return " or ".join(_described(kind) for kind in info.types if not isinstance(kind, inspect.NoneType))
        case inspect.LiteralType():
            return either(info.values)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return ("a finite number" if info.le == sys.float_info.max else "a number") + _range(info)
        case inspect.StrType():
            return "text" + " that is not empty" * bool(info.min_length)
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}: {', '.join(map(_described, info.item_types))}"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list{' that is not empty' * bool(info.min_length)}, each {_described(info.item_type)}"
        case inspect.DictType():
            return f"a table{' that is not empty' * bool(info.min_length)}, each value {_described(info.value_type)}"
        case _:
            return "a table"


def _range(info: Any) -> str:
    """The bounds of a number: ` from 1 to 9`, ` over 0 and at most 1`."""
    most = None if info.le == sys.float_info.max else info.le
    if info.ge is not None and most is not None:
        return f" from {_number(info.ge)} to {_number(most)}"
    bounds = [(" of at least ", info.ge), (" over ", info.gt), (" at most ", most), (" under ", info.lt)]
    return " and".join(f"{word}{_number(bound)}" for word, bound in bounds if bound is not None)


def _number(bound: float) -> str:
    power = int(bound).bit_length()
    if power > 30 and int(bound) in (1 << (power - 1), (1 << power) - 1):
        return f"2^{power - 1}" if int(bound) == 1 << (power - 1) else f"2^{power} - 1"
    return f"{bound:,}"
