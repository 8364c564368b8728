"""A wrong name is answered with the right one: `pilekit.stats` with `corpus_stats`, `workers=2` with `jobs`.

People guess names by the commands of pilekit and by the words of other libraries. guessed_words.py knows these words,
and `difflib` knows misspellings. Both are asked only when a name is wrong. A right name costs nothing, and right
keywords cost one look into a set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pilekit.display.guessed_words import COMMANDS, EARLIER, ELSEWHERE, KEYWORDS, WORDS

F = TypeVar("F", bound=Callable[..., Any])


def nearest(word: str, names: Iterable[str], answers: Mapping[str, str] = {}) -> str:
    """ "; did you mean ...?" for a wrong word, or an empty text.

    names     the right names
    answers   the right name, or another call, by the words that people guess
    """
    from difflib import get_close_matches

    plain = _plain(word)
    answer = {_plain(guess): name for guess, name in answers.items()}.get(plain)
    if answer is None:
        spelled = {_plain(name): name for name in names if not name.startswith("_")}
        close = get_close_matches(plain, spelled, n=2, cutoff=0.7)
        close = close or [name for name in spelled if len(plain) > 3 and plain in name][:3]
        answer = " or ".join(spelled[match] for match in close)
    return f"; did you mean {answer}?" if answer else ""


def nearest_of(word: str, names: Iterable[str]) -> str:
    """`nearest` without its semicolon, and all names, for a choice that an error should show whole."""
    listed = ", ".join(names := list(names))
    near = nearest(word, names).removeprefix("; ")
    return f"{near} There are {listed}" if near else f"there are {listed}"


def _plain(word: str) -> str:
    """A word as people remember it: `--held-out` is held_out and heldOut."""
    return word.lower().replace("_", "").replace("-", "")


def public_name(word: str, names: Iterable[str]) -> str:
    """The end of the message for a wrong name in the module `pilekit`, which has these names."""
    if word in EARLIER:
        return f"; it is {EARLIER[word]} now"
    plain = _plain(word)
    for command, name in COMMANDS.items():
        if plain.removeprefix("corpus").removesuffix("corpus") == _plain(command):
            return f"; did you mean {name}? `pilekit {command.replace('_', '-')}` is pilekit.{name}"
    if plain in ("explore", "doctor"):
        return f"; `pilekit {plain}` is a command alone"
    return nearest(word, names, ELSEWHERE)


def command_name(word: str, commands: Iterable[str]) -> str:
    """The end of the message for a wrong command."""
    command_of = {function: command.replace("_", "-") for command, function in COMMANDS.items()}
    guesses = {guess: command_of[name] for guess, name in (ELSEWHERE | EARLIER).items() if name in command_of}
    return nearest(word, commands, guesses | command_of)


def wrong_attribute(thing: object, word: str) -> AttributeError:
    """The error for a wrong attribute of a public class."""
    answer = "" if word.startswith("_") else nearest(word, dir(thing), _words(type(thing)))
    return with_answer(f"{type(thing).__name__!r} object has no attribute {word!r}", answer)


def with_answer(message: str, answer: str) -> AttributeError:
    """The error of message and answer. Without an answer, Python may add a suggestion of its own."""
    # Python knows misspellings only, and suggests nothing for an error with `obj` and no `name`.
    return AttributeError(message + answer, obj=WORDS) if answer else AttributeError(message)


def wrong_key(batch: Mapping[str, object], key: object) -> KeyError:
    """The error for a wrong key of a batch of tensors."""
    if isinstance(key, str):
        return KeyError(f"a batch has no {key!r}, it has {', '.join(batch)}{nearest(key, batch, WORDS['Batch'])}")
    return KeyError(f'batch[{key!r}]: a batch is a dict of tensors; did you mean batch["input_ids"][{key!r}]?')


class NearestNames:
    """The base of public classes: the error for a wrong attribute or keyword names the right one.

    Keywords are those of the class and of its public methods.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Let the public methods answer wrong keywords."""
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            function = getattr(method, "__func__", method)  # a static method or a class method wraps its function
            if name.startswith("_") or not isinstance(function, FunctionType):
                continue
            code = function.__code__
            if code.co_argcount + code.co_kwonlyargcount > (not isinstance(method, staticmethod)):  # more than self
                answering = _answering(function, f"{cls.__name__}.{name}")
                setattr(cls, name, answering if function is method else type(method)(answering))

    def __new__(cls, *arguments: object, **keywords: object) -> Self:  # noqa: D102
        if keywords and not keywords.keys() <= (names := _keywords(cls.__init__)):
            refuse_wrong_keywords(cls.__name__, keywords, names, _words(cls))
        return super().__new__(cls)

    if not TYPE_CHECKING:  # for type checkers, a wrong attribute is an error

        def __getattr__(self, word: str) -> Any:
            if hasattr(type(self), word):  # a property, or a field without a value, has failed: its own error counts
                return object.__getattribute__(self, word)
            raise wrong_attribute(self, word)


def _words(cls: type) -> dict[str, str]:
    """The answers of WORDS for a class and its bases."""
    return {word: answer for base in reversed(cls.__mro__) for word, answer in WORDS.get(base.__name__, {}).items()}


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
        if keywords and not keywords.keys() <= (names := _keywords(function)):
            refuse_wrong_keywords(name, keywords, names, WORDS.get(name, {}))
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def refuse_wrong_keywords(name: str, keywords: Iterable[str], names: Collection[str], words: dict[str, str]) -> None:
    """TypeError if the function or class `name` is called with a keyword that it does not take.

    names   the keywords that it takes; empty if it takes any
    words   the answers of WORDS for it
    """
    for word in keywords if names else ():
        if word not in names:
            # An answer is a keyword with or without a value, or another call, which any function may need.
            answers = {
                guess: answer
                for answer, guesses in reversed(KEYWORDS.items())
                if (first := answer.partition("=")[0]) in names or not first.isidentifier()
                for guess in guesses.split()
            }
            answer = nearest(word, names, answers | words) or f"; it takes {', '.join(names)}"
            raise TypeError(f"{name}() got an unexpected keyword argument {word!r}{answer}")


@cache
def _keywords(function: Callable[..., object]) -> KeysView[str]:
    """The keywords that a function takes, in its order; empty if it takes any."""
    from inspect import Parameter, signature

    parameters = signature(function).parameters
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: None for name in parameters if not takes_any and name not in ("self", "cls")}.keys()


class Room(ModuleType):
    """A folder of pilekit whose name is a command, too. A call of it is an error that names the function."""

    def __call__(self, *arguments: object, **keywords: object) -> None:
        """Raise the TypeError."""
        command = self.__name__.rpartition(".")[2]
        raise TypeError(f"{self.__name__} is a module{public_name(command, ())}")
