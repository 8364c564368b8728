"""What the options of `pilekit stream` say that is more than a word: repeats, and a state in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pilekit.errors import PilekitError, visible


class Repeats(click.ParamType[dict[str, float]]):
    """`ArXiv=2,Wikipedia (en)=3.5`, as {"ArXiv": 2.0, "Wikipedia (en)": 3.5}."""

    name = "repeats"

    def convert(
        self, value: str | dict[str, float], param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """The factors by the names as typed; wrong usage for what is no list of NAME=FACTOR."""
        if isinstance(value, dict):
            return value
        found: dict[str, float] = {}
        for part in filter(None, map(str.strip, value.split(","))):
            name, sign, factor = part.rpartition("=")
            try:
                found[name.strip()] = float(factor)
            except ValueError:
                sign = ""
            if not sign or not name.strip():
                self.fail(f"{visible(part, 80)} is not NAME=FACTOR, such as ArXiv=2", param, ctx)
        if not found:
            self.fail("it is empty; give NAME=FACTOR, such as ArXiv=2", param, ctx)
        return found


def read_state(file: Path) -> Any:
    """What `state_dict()` gave, or a list of it for all ranks, from a JSON file."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise PilekitError(f"{visible(str(file))}: cannot be read: {error.strerror}; check the path") from error
    except ValueError as error:
        raise PilekitError(
            f"{visible(str(file))}: is not JSON ({visible(str(error), 120)}); write it with "
            "json.dump(stream.state_dict(), file)"
        ) from error
