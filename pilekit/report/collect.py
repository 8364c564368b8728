"""`find_artefacts`: the artefacts at the given paths, and the command that makes each.

A pilekit folder is known by its header (`pilekit.json`), a result of `pilekit bpb` by `result.json`, and a saved output
of `stats --json` or `verify --json` by its fields. Folders are searched for more of these. Everything else is a corpus,
which is counted.

An artefact holds the settings it was made with, but not the command line. So the command is written from the settings;
CORPUS stands for an input whose path the artefact does not hold.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilekit.artifacts.header import HEADER_FILE, Header, read_header
from pilekit.corpus.shard import is_url
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.result import RESULT_FILE
from pilekit.pipeline.rules.sets import SETS
from pilekit.report.corpus import Stats, Verification, read_output
from pilekit.shards.verify.findings import some_names

STATS, VERIFY, BPB, CORPUS = "stats", "verify", "bpb", "corpus"
COMMANDS = {
    "dedup": "dedup",
    "cleaning": "clean",
    "decontamination": "decontaminate",
    "substrings": "substrings",
    "run": "train",
}
"""The kinds of headers that a report shows, and the commands that write them."""

DEPTH = 3
"""How many levels below a given folder are searched."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """An artefact that a report shows.

    kind     a key of `COMMANDS`, or "stats", "verify", "bpb" or "corpus"
    paths    one; for a corpus, all given paths
    given    whether the path was given: then a damaged artefact is an error; a found one is left out
    header   of a folder with one; `saved` is the content of a saved output
    """

    kind: str
    paths: tuple[str, ...]
    given: bool
    header: Header | None = None
    saved: Stats | Verification | None = None

    @property
    def path(self) -> Path:
        """The folder or file."""
        return Path(self.paths[0])

    @property
    def shown_path(self) -> str:
        """The path, or paths, for people."""
        return some_names(self.paths)

    def command(self) -> str:
        """A command that makes this artefact."""
        if self.kind == CORPUS:
            return line("stats", *self.paths, "--copies")
        if self.kind in (STATS, VERIFY):
            return f"{line(self.kind, 'CORPUS', '--json')} > {shlex.quote(str(self.path))}"
        if self.kind == "run":
            return line("train", str(self.path / "config.toml"), "--out", str(self.path))
        if self.header is None:
            return line(self.kind)
        options = list(_options(self.kind, self.header.parameters))
        return line(COMMANDS[self.kind], _input(self.header), *options, "--out", str(self.path))

    def inputs(self) -> str:
        """The shards that it was made from."""
        return some_names(self.header.inputs) if self.header is not None else ""


def find_artefacts(paths: Sequence[str | Path]) -> list[Artefact]:
    """The artefacts at `paths`, each once. PilekitError for a path with nothing to show."""
    found: dict[tuple[str, ...], Artefact] = {}
    corpora = []
    for path in map(str, paths):
        here = [] if is_url(path) else list(_artefacts_at(path))
        if not here:
            corpora.append(path)
        for one in here:
            found.setdefault((os.path.realpath(one.path),), one)
    artefacts = list(found.values())
    return [Artefact(CORPUS, tuple(corpora), True), *artefacts] if corpora else artefacts


def _artefacts_at(path: str) -> Iterator[Artefact]:
    place = Path(path)
    if place.is_dir():
        here = _artefact_in(place, given=True)
        if here is not None:
            yield here
        yield from _below(place, DEPTH)
    elif place.name == RESULT_FILE:
        yield Artefact(BPB, (str(place.parent),), True)
    elif place.suffix == ".json":
        saved = _saved_at(place, given=True)
        if saved is None:
            raise PilekitError(
                f"{visible(path)}: is no output of `pilekit stats --json` or `pilekit verify --json`; give one of "
                "these, a folder that a command wrote, or shards"
            )
        yield saved


def _below(folder: Path, depth: int) -> Iterator[Artefact]:
    """The artefacts below a folder, by name; hidden folders and links are not entered."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise PilekitError(f"{visible(str(folder))}: cannot be read: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith(".") or entry.is_symlink():
            continue
        if entry.is_dir():
            here = _artefact_in(Path(entry.path), given=False)
            if here is not None:
                yield here
            if depth > 1:
                yield from _below(Path(entry.path), depth - 1)
        elif entry.name.endswith(".json") and entry.name not in (HEADER_FILE, RESULT_FILE) and entry.is_file():
            saved = _saved_at(Path(entry.path), given=False)
            if saved is not None:
                yield saved


def _artefact_in(folder: Path, *, given: bool) -> Artefact | None:
    """The folder's artefact; None if a report shows none."""
    if (folder / RESULT_FILE).is_file():
        return Artefact(BPB, (str(folder),), given)
    if (folder / HEADER_FILE).is_file():
        header = read_header(folder)
        if header.kind in COMMANDS:
            return Artefact(header.kind, (str(folder),), given, header)
    return None


def _saved_at(path: Path, *, given: bool) -> Artefact | None:
    saved = read_output(path)
    if saved is None:
        return None
    return Artefact(STATS if isinstance(saved, Stats) else VERIFY, (str(path),), given, saved=saved)


def line(*words: str) -> str:
    """A command of pilekit, as a shell takes it."""
    return shlex.join(("pilekit", *words))


def _input(header: Header) -> str:
    """The path of the shards, if the header holds it."""
    try:
        paths = [header.results[name]["result"]["path"] for name in header.inputs]
        return str(paths[0] if len(paths) == 1 else os.path.commonpath(paths))
    except (KeyError, TypeError, ValueError, IndexError):
        return "CORPUS"


_NOT_OPTIONS = ("seed", "bands", "rows", "write", "label_path", "against", "dedup", "text_field")


def _options(kind: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """The options that give these parameters."""
    limits = {name: value for name, value in parameters.items() if "." in name}
    if sets := list(dict.fromkeys(name.partition(".")[0] for name in limits)):
        yield from ("--rules", ",".join(sets))
    for name, value in limits.items():
        of, _, limit = name.partition(".")
        default = asdict(SETS[of]).get(limit) if of in SETS else None
        if value != (list(default) if isinstance(default, tuple) else default):
            shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            yield from ("--set", f"{name}={shown}")
    if kind == "decontamination":
        yield from ("--against", "EVALUATIONS")
    for name in ("against", "dedup"):
        if kind != "decontamination" and parameters.get(name):
            yield from (f"--{name}", "EARLIER")
    for name, value in parameters.items():
        if name in _NOT_OPTIONS or name in limits or value in (None, False, []):
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if parameters.get("label_path", "meta.pile_set_name") != "meta.pile_set_name":
        yield from ("--label", str(parameters["label_path"]))
    if parameters.get("text_field", "text") != "text":
        yield from ("--text-field", str(parameters["text_field"]))
    if parameters.get("write") is False:
        yield "--no-write"
