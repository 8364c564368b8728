"""Facts about the installation and the machine. Each is found by itself, so a broken package hides no other fact.

A package counts as usable only if it can be imported. A package that lacks a system library, or was built for another
version of Python, is installed but cannot be imported.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pilekit.artifacts.sort.memory_limit import machine_memory, memory_limit
from pilekit.errors import PilekitError, visible
from pilekit.version import __version__

_NOT_LISTED = ("cloud", "dev", "docs")
"""Extras whose packages are not reported."""

_MODULES = {"pyyaml": "yaml"}
"""Packages whose module has a different name."""


class Fact(NamedTuple):
    """A line of the report: its name, the finding, and whether it is a fault."""

    name: str
    found: str
    bad: bool = False


def _facts(finders: Mapping[str, Callable[[], str]]) -> Iterator[Fact]:
    """The result of each finder, or its error as a fault."""
    for name, find in finders.items():
        try:
            yield Fact(name, find())
        except Exception as error:
            told = str(error) if isinstance(error, PilekitError) else f"cannot be told: {_reason(error)}"
            yield Fact(name, told, bad=True)


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
        yield Fact("packages", "pilekit is not installed: run `pip install .` in its folder", bad=True)
        return
    finders = {}
    for line in needed:
        name, extra = re.split(r"[^\w.-]", line, maxsplit=1)[0], re.search(r"extra == ['\"](\w+)", line)
        if extra is None:
            finders[name] = partial(_required, name, line)
        elif extra[1] not in _NOT_LISTED:
            finders[name] = partial(_extra, name, extra[1])
    yield from _facts(finders)


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

    wanted = Requirement(needed).specifier
    if not wanted.contains(version, prereleases=True):
        raise PilekitError(f"{version}, but pilekit needs {wanted}; pip install --upgrade '{name}{wanted}'")
    return version


def _extra(name: str, extra: str) -> str:
    try:
        return f"{metadata.version(name)} (extra {extra})"
    except metadata.PackageNotFoundError:
        return f"not installed; pip install '.[{extra}]'"


def machine(tokenizer: str | None) -> Iterator[Fact]:
    """Cores, memory, the disk of the current folder, torch's build, GPU, and the backend of the tokenizer."""
    finders: dict[str, Callable[[], str]] = {
        "cores": _cores,
        "memory": _memory,
        "disk": _disk,
        "torch build": _torch,
        "GPU": _gpus,
        "tokenizer backend": partial(_backend, tokenizer),
    }
    return _facts(finders)


def _cores() -> str:
    """The CPUs as `pilekit.workers` counts them; that module needs packages that may be missing."""
    installed = os.cpu_count() or 1
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else installed
    others = f" of {installed}: the others are not for this process" if cpus < installed else ""
    load = os.getloadavg()[0]
    return f"{cpus}{others}; load {load:.1f}" + (": busy" if load > cpus else "")


def _disk() -> str:
    return f"{shutil.disk_usage('.').free / 1e9:,.1f} GB free in {visible(Path.cwd())}"


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
        found = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
        return "; ".join(f"{one.name}, {one.total_memory / 1e9:,.0f} GB" for one in found)
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
