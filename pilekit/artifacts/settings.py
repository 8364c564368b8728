"""Settings that are described once, in the fields of a Struct: type, range, default, and a sentence under each field.

    class BoxSettings(msgspec.Struct, frozen=True, kw_only=True):
        width: Count = 20
        \"""Millimetres from side to side.\"""

    @takes_settings(BoxSettings)
    def make_box(settings: BoxSettings) -> Box:
        '''Make it.

        settings  as the fields say
        '''

This function is called with the fields as keywords, `make_box(width=30)`, which type checkers know too. A wrong
number, truth value or word is a `PilekitError` that names its field. Code that reads other values checks them. In the
docstring the sentences of the fields replace the row of `settings`. The command line takes type, default and help of
its options from the same fields (cli/options.py). An error inside `of_setting` knows its setting, so a caller that has
another name for it, as a config has, can say that name (`naming_settings`).
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from itertools import pairwise
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec
from msgspec import Meta

from pilekit.artifacts.checked import checked
from pilekit.errors import PilekitError

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)
SettingsT = TypeVar("SettingsT", bound=msgspec.Struct, covariant=True)
T = TypeVar("T")

LARGEST_INTEGER = 2**53
"""The largest whole number that every JSON reader reads exactly."""

Count = Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)]
FromZero = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
NotNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]

TEXT = r"[^\0\ud800-\udfff]+"
"""No null characters, which no path may hold, and no half characters, which no file may hold."""
Text = Annotated[str, Meta(min_length=1, pattern=rf"\A{TEXT}\Z")]
Texts = Annotated[Sequence[Text], Meta(min_length=1)]
Numbers = Annotated[Mapping[Text, NotNegative], Meta(min_length=1)]


class Setting(NamedTuple):
    """A setting as a function takes it.

    annotation  the type in the text of the signature
    default     `inspect.Parameter.empty`: a value must be given
    """

    name: str
    annotation: str
    default: Any
    sentence: str
    is_keyword: bool = True


class _Taking(Protocol[P, SettingsT]):
    @overload
    def __call__(self, function: Callable[[SettingsT], R]) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[[T, SettingsT], R]) -> Callable[Concatenate[T, P], R]: ...


def takes_settings(kind: Callable[P, S]) -> _Taking[P, S]:
    """The decorator of a function, or of a method, whose only parameter is `settings`, of the Struct `kind`."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        owners = len(inspect.signature(function).parameters) - 1  # 1 for a method

        @wraps(function)
        def call(*arguments: Any, **values: Any) -> R:
            __tracebackhide__ = True  # for IPython and pytest
            settings = kind(*arguments[owners:], **values)
            check_settings(settings)
            return function(*arguments[:owners], settings)

        return described(call, "settings", settings_of(fields))

    fields = cast("type[msgspec.Struct]", kind)
    plain_types(fields)  # here, so that the first call does not pay for it
    return decorate


def check_settings(settings: msgspec.Struct) -> None:
    """PilekitError for a number, truth value or word that its field does not allow."""
    for name, hint in plain_types(type(settings)).items():
        with of_setting(name):
            checked(getattr(settings, name), hint, name)


@cache
def plain_types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of the fields that hold numbers, truth values or one of several words."""

    def is_plain(hint: Any) -> bool:
        if (origin := get_origin(hint)) is Annotated:
            return is_plain(hint.__origin__)
        if origin in (Union, UnionType, tuple):
            return all(map(is_plain, get_args(hint)))
        return origin is Literal or hint in (bool, float, int, NoneType)

    return {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if is_plain(hint)}


@cache
def settings_of(kind: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """The fields as settings; without source code, as in a frozen program, they have no sentences."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-2]):
        for field, text in pairwise(_class_bodies(base.__module__).get(base.__name__, [])):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(sentence))):
                    texts[name] = " ".join(sentence.split())
    types = get_type_hints(kind)
    return tuple(
        Setting(
            name, written(types[name]), parameter.default, texts.get(name, ""), parameter.kind is parameter.KEYWORD_ONLY
        )
        for name, parameter in inspect.signature(kind).parameters.items()
    )


def written(hint: Any) -> str:
    """A type as a signature shows it, without modules and ranges."""
    return re.sub(r"Optional\[(.*)\]$", r"\1 | None", re.sub(r"\w+\.", "", inspect.formatannotation(hint)))


@cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def described(function: F, row: str, settings: Iterable[Setting]) -> F:
    """The function with these settings in its signature and docstring, in place of its last parameter, `row`.

    In the docstring, the sentences replace the row of that name. A setting with a row of its own keeps it.
    """
    signature = inspect.signature(function)
    *explicit, _ = signature.parameters.values()
    settings = tuple(settings)
    shared = [
        inspect.Parameter(
            setting.name,
            inspect.Parameter.KEYWORD_ONLY if setting.is_keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=setting.default,
            annotation=setting.annotation,
        )
        for setting in settings
    ]
    function.__signature__ = signature.replace(parameters=[*explicit, *shared])  # type: ignore[attr-defined]
    text = function.__doc__ or ""
    if (match := re.search(rf"^( *){row}( +).*\n", text, re.MULTILINE)) is not None:  # None: Python -OO
        longest = max(len(setting.name) for setting in settings)
        indent, column = match[1], len(match[1]) + max(len(row + match[2]), 2 + longest)
        rows = [
            textwrap.fill(
                f"{indent}{setting.name}".ljust(column) + setting.sentence, 120, subsequent_indent=" " * column
            )
            for setting in settings
            if not re.search(rf"^ *{setting.name} ", text, re.MULTILINE)
        ]
        function.__doc__ = text[: match.start()] + "".join(f"{line}\n" for line in rows) + text[match.end() :]
    return function


@contextmanager
def of_setting(name: str) -> Iterator[None]:
    """Note that an error is about the setting `name`; the innermost name counts."""
    try:
        yield
    except PilekitError as error:
        error.setting = error.setting or name
        raise


@contextmanager
def naming_settings(names: Callable[[str], str]) -> Iterator[None]:
    """Prefix an error about a setting with the caller's name of it."""
    try:
        yield
    except PilekitError as error:
        if error.setting is None or not (name := names(error.setting)):
            raise
        raise PilekitError(f"{name}: {error}") from error
