"""Assert that a call is refused: a PilekitError in one line, and without control characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilekit.errors import PilekitError


def refused(match: str, call: Callable[..., object], /, *arguments: Any, **named: Any) -> str:
    """The message of the error that the call raises, in which `match` (a regular expression) is found."""
    with pytest.raises(PilekitError, match=match) as error:
        call(*arguments, **named)
    assert str(error.value).isprintable()
    return str(error.value)
