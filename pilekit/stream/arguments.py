"""Checks of PileStream's arguments: a wrong value raises one line that names the valid values."""

from __future__ import annotations

from collections.abc import Sequence

from pilekit.errors import PilekitError, shortened
from pilekit.tokenize import Tokenizer, load_tokenizer

MOST_TOKENS_IN_ROW = 1 << 24
"""A longer row is a mistake: no memory could hold a batch of such rows."""

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""A state, which is JSON, holds no other whole numbers."""


def check_one_of(name: str, value: object, valid: Sequence[object]) -> None:
    """PilekitError if the argument `name` is none of `valid`."""
    if value not in valid:
        raise PilekitError(f"{name} is one of {', '.join(map(str, valid))}, not {shortened(repr(value), 80)}")


def check_number(name: str, value: object, least: int | None = 1, most: int | None = None) -> None:
    """PilekitError if the argument `name` is not a whole number from `least` to `most`; None: 64 bits are the bound."""
    if type(value) is not int or not (_LEAST if least is None else least) <= value <= (_MOST if most is None else most):
        bound = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most:,}"
        bound += " of 64 bits" * (type(value) is int and not _LEAST <= value <= _MOST)
        raise PilekitError(f"{name} is a whole number{bound}, not {shortened(repr(value), 80)}")


def tokenizer_of(tokenizer: object) -> Tokenizer | None:
    """Load the tokenizer from a path or an object; None stays None: the stream gives untokenized documents.

    PilekitError if the tokenizer has no end-of-document token.
    """
    if tokenizer is None:
        return None
    found = load_tokenizer(tokenizer)
    if found.eos_id is None:
        raise PilekitError(
            f"the tokenizer {found.path} has no end-of-document token, which must follow every "
            'document; name it as "eos_token" in a tokenizer_config.json beside it'
        )
    return found
