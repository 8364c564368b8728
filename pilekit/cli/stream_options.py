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


class Lanes(click.ParamType[tuple[int, int]]):
    """`32,4`, as (32, 4)."""

    name = "lanes"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Rows and columns; wrong usage for what is no two whole numbers."""
        if isinstance(value, tuple):
            return value
        numbers = value.split(",")
        if len(numbers) != 2 or not all(n.strip().isascii() and n.strip().isdecimal() and len(n) < 10 for n in numbers):
            self.fail(f"{visible(value, 80)} is not ROWS,COLUMNS, such as 32,4", param, ctx)
        return int(numbers[0]), int(numbers[1])


def read_state(file: Path) -> Any:
    """What `state_dict()` gave, or a list of it for all ranks, from a JSON file, or from a checkpoint of a run.

    A checkpoint is a folder `step-N`, whose state.json holds the stream's state among other things.
    """
    try:
        state = json.loads((file / "state.json" if file.is_dir() else file).read_bytes())
        if isinstance(state, dict) and "xxh3" in state and isinstance(whole := state.get("state"), dict):
            progress = whole.get("progress")
            return progress.get("stream") if isinstance(progress, dict) else None
        return state
    except OSError as error:
        raise PilekitError(f"{visible(str(file))}: cannot be read: {error.strerror}; check the path") from error
    except ValueError as error:
        raise PilekitError(
            f"{visible(str(file))}: is not JSON ({visible(str(error), 120)}); write it with "
            "json.dump(stream.state_dict(), file)"
        ) from error
