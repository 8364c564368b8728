"""`find_artefacts`: the artefacts at the given paths, and the command that makes each.

A pilekit folder is known by its header (`pilekit.json`), a result of `pilekit bpb` by `result.json`, and a saved output
of `stats --json` or `verify --json` by its fields. Everything else is a corpus, which is counted.

An artefact holds the settings it was made with, but not the command line. So the command is written from the settings;
CORPUS stands for an input whose path the artefact does not hold.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilekit.artifacts.header import HEADER_FILE, Header, read_header
from pilekit.corpus.shard import is_url
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.result import RESULT_FILE
from pilekit.evaluate.results.result_folder import read_result
from pilekit.report.corpus import read_output
from pilekit.shards.verify.findings import some_names
from pilekit.stats.summary import CorpusStats

KINDS = {
    "stats": ("Corpus", "stats"),
    "verify": ("Corpus", "verify"),
    "dedup": ("Deduplication", "dedup"),
    "cleaning": ("Cleaning", "clean"),
    "decontamination": ("Decontamination", "decontaminate"),
    "substrings": ("Repeated passages", "substrings"),
    "run": ("Training", "train"),
    "bpb": ("Bits per byte", "bpb"),
    "compared": ("Bits per byte", "bpb"),
}
"""The kinds of artefacts in the order of the page, each with the title of its section and its command."""

WITH_HEADER = ("dedup", "cleaning", "decontamination", "substrings", "run")
"""The kinds that a folder's header names."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """An artefact that a report shows, and the source of numbers on the page.

    kind      a key of `KINDS`
    path      the folder or file; for several, their names
    command   a command that makes it with these settings
    content   a corpus's paths, a folder's header, a saved output, or results of `pilekit bpb`
    """

    kind: str
    path: str
    command: str
    content: Any


def find_artefacts(paths: Sequence[str | Path], options: Sequence[str] = ()) -> list[Artefact]:
    """The artefacts at `paths`; all corpora together are one.

    options    of `pilekit stats`, with which corpora are counted
    """
    found = {str(path): None if is_url(str(path)) else _artefact(Path(path)) for path in paths}
    corpora = [path for path, one in found.items() if one is None]
    counted = line("stats", *corpora, "--copies", *options)
    artefacts = [Artefact("stats", some_names(corpora), counted, corpora)] if corpora else []
    return [*artefacts, *(one for one in found.values() if one is not None)]


def _artefact(path: Path) -> Artefact | None:
    """The artefact at a path; None for a corpus. PilekitError for a JSON file with nothing to show."""
    folder = str(path)
    if (path / RESULT_FILE).is_file():
        of = (result := read_result(folder)).protocol
        limit = () if of["limit"] is None else ("--limit", str(of["limit"]))
        command = line("bpb", str(of["model"]["path"] or "MODEL"), "CORPUS", *limit, "--out", folder)
        return Artefact("bpb", folder, command, result)
    if (path / HEADER_FILE).is_file() and (header := read_header(path)).kind in WITH_HEADER:
        command = line(KINDS[header.kind][1], *_arguments(header, folder), "--out", folder)
        return Artefact(header.kind, folder, command, header)
    if path.suffix != ".json" or path.is_dir():
        return None
    if (saved := read_output(path)) is None:
        raise PilekitError(
            f"{visible(path)}: is no output of `pilekit stats --json` or `pilekit verify --json`; give one of "
            "these, a folder that a command wrote, or shards"
        )
    kind = "stats" if isinstance(saved, CorpusStats) else "verify"
    return Artefact(kind, folder, f"{line(kind, 'CORPUS', '--json')} > {shlex.quote(folder)}", saved)


def line(*words: str) -> str:
    """A command of pilekit, as a shell takes it."""
    return shlex.join(("pilekit", *words))


FEW = 4
"""A command names so many shards; of more, the folder that holds them."""
_NOT_OPTIONS = ("seed", "bands", "rows", "write")
_NAMES = {"label_path": "label"}
_STANDS_FOR = {"against": "EARLIER", "dedup": "EARLIER"}


def _arguments(header: Header, folder: str) -> Iterator[str]:
    """The paths and options that give the header's parameters."""
    if header.kind == "run":
        yield str(Path(folder) / "config.toml")
        return
    try:
        found = header.results.get("/found")
        held = (
            found["result"]["paths"].values()
            if found
            else [header.results[name]["result"]["path"] for name in header.inputs]
        )
        paths = list(map(str, held))
        yield from paths if len(paths) <= FEW else [os.path.commonpath(paths)]
    except (KeyError, TypeError, ValueError, IndexError):
        yield "CORPUS"
    limits = [name for name in header.parameters if "." in name]
    if limits:
        yield from ("--rules", ",".join(dict.fromkeys(name.partition(".")[0] for name in limits)))
    if header.kind == "decontamination":
        yield from ("--against", "EVALUATIONS")
    for name, value in header.parameters.items():
        shown = _STANDS_FOR.get(name) or (",".join(map(str, value)) if isinstance(value, list) else str(value))
        if name in limits:
            yield from ("--set", f"{name}={shown}")
        elif name not in _NOT_OPTIONS and value is not None and value is not False and value != []:
            yield f"--{_NAMES.get(name, name).replace('_', '-')}"
            if value is not True:
                yield shown
    if header.parameters.get("write") is False:
        yield "--no-write"
