"""`pilekit doctor`: what is installed, what the machine has, and how fast the commands would be on it.

It prints plain lines as it finds them, without rich, so that it works where packages are missing or broken.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from pilekit.cli.options import folder_option, json_option
from pilekit.doctor.machine import usable_cpus
from pilekit.errors import PilekitError, counted, visible

NAME = 26
"""The width of the names."""


@click.command()
@click.option("--tokenizer", metavar="F", help="Also measure this tokenizer, and the commands that tokenize.")
@folder_option("--disk", "Measure the disk of this folder.", default=".")
@json_option
def command(tokenizer: str | None, disk: Path, as_json: bool) -> None:
    """List the installed packages and the hardware, and estimate the rate of each command.

    Every package is imported, and each that is missing, broken or too old is named. Then small pieces of work are timed
    for two or three seconds, and the rates of the commands are estimated from them; docs/benchmarks.md says how. 64 MiB
    are written to the disk and removed.

    Exit code 1 if something is missing or broken.

    \b
    Example:
      pilekit doctor
      pilekit doctor --tokenizer 20B_tokenizer.json --disk /scratch
      pilekit doctor --json > machine.json
    """
    from pilekit.doctor.machine import machine, packages
    from pilekit.doctor.rates import expected, measured

    if not disk.is_dir():
        raise PilekitError(f"{visible(disk)}: there is no such folder; --disk names one whose disk is measured")

    def say(line: str, shown: bool = not as_json) -> None:
        if shown:
            with suppress(SystemExit):  # A reader that has gone does not hide a fault.
                click.echo(line)

    found: dict[str, dict[str, Any]] = {"packages": {}, "machine": {}, "measured": {}, "expected": {}}
    faults = []
    for part, facts in (("packages", packages()), ("machine", machine(disk, tokenizer))):
        say(f"{part}:")
        for fact in facts:
            found[part][fact.name] = fact.found
            faults += [fact.name] * fact.bad
            say(f"  {fact.name:<{NAME}}{'FAULT: ' * fact.bad}{fact.found}")
    say("measured, in a CPU second:")
    for name, rate, failed in measured(disk, tokenizer):
        found["measured"][name] = rate
        unit = "GFLOP/s" if name == "multiply" else "MB/s"
        say(f"  {name:<{NAME}}{rate if failed else f'{rate:>7,.0f} {unit}'}")
    cores = usable_cpus()
    say(f"expected, estimated from these for {counted(cores, 'core')}; MB are of text:")
    for name, one in expected(found["measured"], cores, gpu=not found["machine"]["GPU"].startswith("none")).items():
        found["expected"][name] = one._asdict()
        say(f"  {name:<{NAME}}{one.rate:>7,.0f} {one.unit}{' (limited by the disk)' * (one.limit == 'disk')}")
    if as_json:
        say(json.dumps({**found, "faults": faults}, indent=2), shown=True)
    elif faults:
        click.echo(f"{counted(len(faults), 'fault')}: {', '.join(faults)}", err=True)
    sys.exit(1 if faults else 0)
