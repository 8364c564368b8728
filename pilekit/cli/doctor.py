"""`pilekit doctor`: what is installed, and what the machine has.

It prints plain lines as it finds them, without rich, so that it works where packages are missing or broken. Each fact
is found by itself, so a broken package hides no other fact. A package counts as usable only if it can be imported. One
that lacks a system library, or was built for another version of Python, is installed but cannot be imported.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import click

from pilekit.artifacts.sort.memory_limit import machine_memory, memory_limit
from pilekit.cli.options import json_option
from pilekit.cli.standard_streams import wrapped
from pilekit.errors import PilekitError, counted, visible
from pilekit.version import __version__

NAME = 26
"""The width of the names."""

_NOT_LISTED = ("cloud", "dev", "docs")
"""Extras whose packages are not reported."""

_MODULES = {"pyyaml": "yaml"}
"""Packages whose module has a different name."""


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

    def say(line: str, shown: bool = not as_json) -> None:
        if shown:
            with suppress(SystemExit):  # A reader that has gone does not hide a fault.
                click.echo(wrapped(line, sys.stdout, " " * 4))

    report: dict[str, dict[str, str]] = {"packages": {}, "machine": {}}
    faults = []
    for part, facts in (("packages", packages()), ("machine", machine(tokenizer))):
        say(f"{part}:")
        for fact in facts:
            report[part][fact.name] = fact.finding
            faults += [fact.name] * fact.is_fault
            say(f"  {fact.name:<{NAME}}{'FAULT: ' * fact.is_fault}{fact.finding}")
    if as_json:
        say(json.dumps({**report, "faults": faults}, indent=2), shown=True)
    elif faults:
        click.echo(f"{counted(len(faults), 'fault')}: {', '.join(faults)}", err=True)
    sys.exit(1 if faults else 0)


class Fact(NamedTuple):
    """A line of the report: its name, the finding, and whether it is a fault."""

    name: str
    finding: str
    is_fault: bool = False


def _facts(finders: Mapping[str, Callable[[], str]]) -> Iterator[Fact]:
    """The result of each finder, or its error as a fault."""
    for name, find in finders.items():
        try:
            yield Fact(name, find())
        except Exception as error:
            message = str(error) if isinstance(error, PilekitError) else f"cannot be told: {_reason(error)}"
            yield Fact(name, message, is_fault=True)


def _reason(error: Exception) -> str:
    """The error in one line."""
    return visible(f"{type(error).__name__}: {error}".split("\n", 1)[0], 200)


def _import_of(name: str) -> Any:
    """The module; an exception whatever goes wrong."""
    try:
        return importlib.import_module(name)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # such as a Rust panic
        raise ImportError(str(error)) from error


def packages() -> Iterator[Fact]:
    """pilekit, Python and the system, then each required package with its version and any fault, then the extras."""
    yield Fact("pilekit", __version__)
    yield Fact("Python", platform.python_version())
    yield Fact("system", platform.platform())
    try:
        needed = metadata.requires("pilekit") or []
    except metadata.PackageNotFoundError:
        yield Fact("packages", "pilekit is not installed: run `pip install .` in its folder", is_fault=True)
    else:
        yield from required_packages(needed)


def required_packages(needed: Sequence[str]) -> Iterator[Fact]:
    """A fact for each package of these requirements, as the metadata of pilekit lists them."""
    finders = {}
    for line in needed:
        name, extra = re.split(r"[^\w.-]", line, maxsplit=1)[0], re.search(r"extra == ['\"](\w+)", line)
        if extra is None:
            finders[name] = partial(_required, name, line)
        elif extra[1] not in _NOT_LISTED:
            finders[name] = partial(_extra, name, extra[1])
    return _facts(finders)


def _required(name: str, needed: str) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise PilekitError("missing; run `pip install .` again") from None
    try:
        _import_of(_MODULES.get(name, name.replace("-", "_")))
    except Exception as error:
        raise PilekitError(f"{version}, cannot be imported: {_reason(error)}") from error
    from packaging.requirements import Requirement

    versions = Requirement(needed).specifier
    if not versions.contains(version, prereleases=True):
        raise PilekitError(f"{version}, but pilekit needs {versions}; pip install --upgrade '{name}{versions}'")
    return version


def _extra(name: str, extra: str) -> str:
    try:
        return f"{metadata.version(name)} (extra {extra})"
    except metadata.PackageNotFoundError:
        return f"not installed; pip install '.[{extra}]'"


def machine(tokenizer: str | None) -> Iterator[Fact]:
    """Cores, memory, the disk of the current folder, torch's build, GPU, and the backend of the tokenizer."""
    return _facts(
        {
            "cores": _cores,
            "memory": _memory,
            "disk": lambda: f"{shutil.disk_usage('.').free / 1e9:,.1f} GB free in {visible(Path.cwd())}",
            "torch build": _torch,
            "GPU": _gpus,
            "tokenizer backend": partial(_backend, tokenizer),
        }
    )


def _cores() -> str:
    """The CPUs, counted as in `pilekit.workers`, which needs packages that may be missing."""
    installed = os.cpu_count() or 1
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else installed
    reserved = f" of {installed}: the others are not for this process" if cpus < installed else ""
    load = os.getloadavg()[0]
    return f"{cpus}{reserved}; load {load:.1f}" + (": busy" if load > cpus else "")


def _torch() -> str:
    import torch

    build = "for the CPU" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__}, {build}, {torch.get_num_threads()} threads, {vectors}"


def _memory() -> str:
    """The machine's memory, and its container's limit if that is lower."""
    total, limit = machine_memory(), memory_limit()
    return f"{total / 1e9:,.1f} GB" + (f", limited to {limit / 1e9:,.1f} GB" if limit < total else "")


def _gpus() -> str:
    import torch

    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
        return "; ".join(f"{gpu.name}, {gpu.total_memory / 1e9:,.0f} GB" for gpu in gpus)
    if not Path("/dev/nvidia0").exists():
        return "none: training and scoring run on the CPU"
    why = "torch is built for the CPU" if torch.version.cuda is None else "its driver does not fit torch's build"
    raise PilekitError(f"there is one, but {why}; pytorch.org names the build to install")


def _backend(tokenizer: str | None) -> str:
    """The tokenizer's backend; without a tokenizer, whether the fast backend can be loaded."""
    if tokenizer is None:
        try:
            _import_of("fastokens")
        except Exception as error:
            why = _reason(error)
            raise PilekitError(f"tokenizers alone, which is slow: fastokens fails: {why}") from error
        return "fastokens, if its ids are those of tokenizers"
    loaded = _import_of("pilekit.tokenize").load_tokenizer(tokenizer)
    return f"{loaded.backend} for {visible(loaded.path)}"
