"""`pilekit doctor`: what is installed, and what the machine has.

It prints plain lines as it finds them, without rich, so that it works where packages are missing or broken.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import click

from pilekit.cli.options import json_option
from pilekit.cli.standard_streams import wrapped
from pilekit.errors import counted

NAME = 26
"""The width of the names."""


@click.command()
@click.option("--tokenizer", metavar="F", help="Also say which backend this tokenizer gets.")
@json_option
def command(tokenizer: str | None, as_json: bool) -> None:
    """List the installed packages and the hardware.

    Every package is imported, and each that is missing, broken or too old is named. Cores, memory, disk and GPU follow,
    and the backend of tokenizers.

    Exit code 1 if something is missing or broken.

    \b
    Example:
      pilekit doctor
      pilekit doctor --tokenizer 20B_tokenizer.json
      pilekit doctor --json > machine.json
    """
    from pilekit.cli.machine import machine, packages

    def say(line: str, shown: bool = not as_json) -> None:
        if shown:
            with suppress(SystemExit):  # A reader that has gone does not hide a fault.
                click.echo(wrapped(line, sys.stdout, " " * 4))

    found: dict[str, dict[str, str]] = {"packages": {}, "machine": {}}
    faults = []
    for part, facts in (("packages", packages()), ("machine", machine(tokenizer))):
        say(f"{part}:")
        for fact in facts:
            found[part][fact.name] = fact.found
            faults += [fact.name] * fact.bad
            say(f"  {fact.name:<{NAME}}{'FAULT: ' * fact.bad}{fact.found}")
    if as_json:
        say(json.dumps({**found, "faults": faults}, indent=2), shown=True)
    elif faults:
        click.echo(f"{counted(len(faults), 'fault')}: {', '.join(faults)}", err=True)
    sys.exit(1 if faults else 0)
