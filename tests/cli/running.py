"""Run a command in this process, as the tests of all commands do."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner, Result

from pilekit.cli.main import pilekit
from pilekit.errors import PilekitError

PILEKIT = [sys.executable, "-m", "pilekit.cli.main"]
"""The command line as a process of its own."""


def run(name: str, *arguments: object, exit_code: int | None = None, **environment: str) -> Result:
    """`pilekit NAME ARGUMENTS`. Raises what the command raises; checks `exit_code`, if one is given."""
    command = pilekit.get_command(Context(pilekit), name)
    assert command is not None
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert exit_code is None or result.exit_code == exit_code, result.output
    return result


def run_json(name: str, *arguments: object, exit_code: int | None = 0) -> Any:
    """The JSON that the command prints."""
    return json.loads(run(name, *arguments, "--json", exit_code=exit_code).stdout)


def refused(match: str, name: str, *arguments: object) -> str:
    """The error of the command, which is one line and holds the regular expression `match`."""
    with pytest.raises(PilekitError, match=match) as raised:
        run(name, *arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def cells(output: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in output.splitlines()]
