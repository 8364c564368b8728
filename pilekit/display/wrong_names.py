"""A wrong name is answered with the right one: `pilekit.stats` with `corpus_stats`, `workers=2` with `jobs`.

People guess names by the commands of pilekit and by the words of other libraries. guessed_words.py knows these words,
and `difflib` knows misspellings. They are read when a name is wrong. A right name costs nothing more, but that a call
with keywords looks these up in a set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pilekit.display.guessed_words import COMMANDS, EARLIER, ELSEWHERE, KEYWORDS, WORDS

F = TypeVar("F", bound=Callable[..., Any])


def nearest(word: str, known: Iterable[str], words: Mapping[str, str] = {}) -> str:
    """ "; did you mean ...?" for a wrong word, or an empty text. `words` are those of others."""
    from difflib import get_close_matches

    plain = _plain(word)
    meant = {_plain(other): name for other, name in words.items()}.get(plain)
    if meant is None:
        spelled = {_plain(name): name for name in known if not name.startswith("_")}
        close = get_close_matches(plain, spelled, n=2, cutoff=0.7)
        close = close or [name for name in spelled if len(plain) > 3 and plain in name][:3]
        meant = " or ".join(spelled[match] for match in close)
    return f"; did you mean {meant}?" if meant else ""


def nearest_of(word: str, known: Iterable[str]) -> str:
    """`nearest` without its semicolon, and all names, for a choice that an error should show whole."""
    near, names = nearest(word, known := list(known)).removeprefix("; "), ", ".join(known)
    return f"{near} There are {names}" if near else f"there are {names}"


def _plain(word: str) -> str:
    """A word as people remember it: `--held-out` is held_out and heldOut."""
    return word.lower().replace("_", "").replace("-", "")


def public_name(word: str, known: Iterable[str]) -> str:
    """The end of the message for a wrong name in the module `pilekit`, whose names are `known`."""
    if word in EARLIER:
        return f"; it is {EARLIER[word]} now"
    plain = _plain(word)
    for command, name in COMMANDS.items():
        if plain.removeprefix("corpus").removesuffix("corpus") == _plain(command):
            return f"; did you mean {name}? `pilekit {command.replace('_', '-')}` is pilekit.{name}"
    if plain in ("explore", "doctor"):
        return f"; `pilekit {plain}` is a command alone"
    return nearest(word, known, ELSEWHERE)


def command_name(word: str, known: Iterable[str]) -> str:
    """The end of the message for a wrong command; `known` are the commands."""
    of_function = {name: command.replace("_", "-") for command, name in COMMANDS.items()}
    others = {other: of_function[name] for other, name in (ELSEWHERE | EARLIER).items() if name in of_function}
    return nearest(word, known, others | of_function)


def wrong_attribute(thing: object, word: str) -> AttributeError:
    """The error for a wrong attribute of a public class."""
    answer = "" if word.startswith("_") else nearest(word, dir(thing), _words(type(thing)))
    return with_answer(f"{type(thing).__name__!r} object has no attribute {word!r}", answer)


def with_answer(message: str, answer: str) -> AttributeError:
    """The error of message and answer; without one, Python may add a suggestion of its own."""
    # Python knows misspellings only, and suggests nothing for an error with `obj` and no `name`.
    return AttributeError(message + answer, obj=WORDS) if answer else AttributeError(message)


def wrong_key(batch: Mapping[str, object], key: object) -> KeyError:
    """The error for a wrong key of a batch of tensors."""
    if isinstance(key, str):
        return KeyError(f"a batch has no {key!r}, it has {', '.join(batch)}{nearest(key, batch, WORDS['Batch'])}")
    return KeyError(f'batch[{key!r}]: a batch is a dict of tensors; did you mean batch["input_ids"][{key!r}]?')


class NearestNames:
    """The base of public classes: a wrong attribute names the right one, and so does a wrong keyword.

    That is a keyword at construction, or of a public method.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Let the public methods answer wrong keywords."""
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            function = getattr(method, "__func__", method)  # that of a static method or a class method
            if name.startswith("_") or not isinstance(function, FunctionType):
                continue
            code = function.__code__
            if code.co_argcount + code.co_kwonlyargcount > (not isinstance(method, staticmethod)):  # more than self
                answering = _answering(function, f"{cls.__name__}.{name}")
                setattr(cls, name, answering if function is method else type(method)(answering))

    def __new__(cls, *arguments: object, **keywords: object) -> Self:  # noqa: D102
        if keywords:
            refuse_wrong_keywords(cls.__name__, keywords, _keywords(cls.__init__), _words(cls))
        return super().__new__(cls)

    if not TYPE_CHECKING:  # for type checkers, a wrong attribute is an error

        def __getattr__(self, word: str) -> Any:
            if hasattr(type(self), word):  # a property, or a field without a value, has failed: its own error counts
                return object.__getattribute__(self, word)
            raise wrong_attribute(self, word)


def _words(cls: type) -> dict[str, str]:
    return {word: meant for base in reversed(cls.__mro__) for word, meant in WORDS.get(base.__name__, {}).items()}


def with_nearest_keywords(function: F) -> F:
    """The function, whose error for a wrong keyword names the right one.

    Python imports it from `pilekit`, so that pickle finds this object there, and the original where it is written.
    """
    call = _answering(function, function.__name__)
    call.__module__ = "pilekit"
    return call


def _answering(function: F, name: str) -> F:
    """The function with an error for a wrong keyword that calls it `name`."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # for IPython and pytest
        if keywords and not keywords.keys() <= (known := _keywords(function)):
            refuse_wrong_keywords(name, keywords, known, WORDS.get(name, {}))
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def refuse_wrong_keywords(name: str, keywords: Iterable[str], known: Collection[str], words: dict[str, str]) -> None:
    """TypeError if the function or class `name`, which takes `known`, is called with another keyword."""
    for word in keywords if known else ():
        if word not in known:
            # An answer is a keyword with or without a value, or another call, which any function may need.
            answers = {
                other: answer
                for answer, others in reversed(KEYWORDS.items())
                if (first := answer.partition("=")[0]) in known or not first.isidentifier()
                for other in others.split()
            }
            answer = nearest(word, known, answers | words) or f"; it takes {', '.join(known)}"
            raise TypeError(f"{name}() got an unexpected keyword argument {word!r}{answer}")


@cache
def _keywords(function: Callable[..., object]) -> KeysView[str]:
    """The keywords of a function; none if it takes any."""
    from inspect import Parameter, signature

    parameters = [one for one in signature(function).parameters.values() if one.name not in ("self", "cls")]
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    return {one.name: None for one in parameters if not takes_any}.keys()


class Room(ModuleType):
    """A folder of pilekit whose name is a command, too. Calling it names the function."""

    def __call__(self, *arguments: object, **keywords: object) -> None:
        """Raise the TypeError."""
        command = self.__name__.rpartition(".")[2]
        raise TypeError(f"{self.__name__} is a module{public_name(command, ())}")
