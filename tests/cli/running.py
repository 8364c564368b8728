"""Run a command in this process, as the tests of all commands do."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner, Result

from pilekit.cli.main import main, pilekit
from pilekit.errors import PilekitError

PILEKIT = [sys.executable, "-m", "pilekit.cli.main"]
"""The command line as a process of its own."""


def invoked(name: str, *arguments: object, **environment: str) -> Result:
    command = pilekit.get_command(Context(pilekit), name)
    assert command is not None
    return CliRunner().invoke(command, [str(argument) for argument in arguments], env=environment)


def run(name: str, *arguments: object, exit_code: int | None = None, **environment: str) -> Result:
    """`pilekit NAME ARGUMENTS`. Raises what the command raises; checks `exit_code`, if one is given."""
    result = invoked(name, *arguments, **environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert exit_code is None or result.exit_code == exit_code, result.output
    return result


def on_terminal(*arguments: object, columns: int = 80) -> str:
    """All that `pilekit ARGUMENTS` prints on a terminal of this width."""
    return terminal_output([*PILEKIT, *map(str, arguments)], columns)


def terminal_output(command: list[str], columns: int) -> str:
    """All that a command prints on a terminal of this width."""
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env={**environment, "TERM": "xterm"}
    ):
        os.close(terminal)
        printed = b""
        try:
            while part := os.read(ours, 1 << 16):
                printed += part
        except OSError:  # The end of a terminal, on Linux.
            os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def run_json(name: str, *arguments: object, exit_code: int | None = 0) -> Any:
    """The JSON that the command prints."""
    return json.loads(run(name, *arguments, "--json", exit_code=exit_code).stdout)


def refused(match: str, name: str, *arguments: object) -> str:
    """The error of the command: one line with a match of the regular expression, and nothing on standard output."""
    result = invoked(name, *arguments)
    assert isinstance(result.exception, PilekitError), (result.output, result.exception)
    message = str(result.exception)
    assert re.search(match, message), message
    assert "\n" not in message
    assert result.stdout == ""
    return message


ONE_AFTER_THE_OTHER = """
import sys
from pilekit.cli.main import main
for command in sys.argv[1:]:
    sys.argv = ["pilekit", *command.split()]
    try: main()
    except SystemExit as end: assert end.code == 1
    assert not {"torch", "transformers", "wandb"} & sys.modules.keys()
"""


def assert_told_before_torch(errors: dict[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Each command, of one process, fails with one line that holds the error, and imports no large library."""
    script = [sys.executable, "-c", ONE_AFTER_THE_OTHER, *errors]
    process = subprocess.run(script, env={**environment}, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for line, error in zip(process.stderr.splitlines(), errors.values(), strict=True):
        assert error in line


@contextmanager
def ended() -> Iterator[pytest.ExceptionInfo[SystemExit]]:
    """`main` ends in the block, and its handler of Ctrl-C, which ignores the second one, does not stay."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            yield end
    finally:
        signal.signal(signal.SIGINT, before)


def leave(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """The exit code of `pilekit ARGUMENTS`, standard output and standard error."""
    with pytest.MonkeyPatch.context() as patch, ended() as end:
        patch.setattr(sys, "argv", ["pilekit", *arguments])
        ending: Callable[[], object] = main  # Its type NoReturn would forbid the line below.
        ending()
    return end.value.code, *capsys.readouterr()


def cells(output: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in output.splitlines()]
