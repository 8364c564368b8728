"""`sort_out`: the artefacts at the given paths with the command that makes each, and the paths that are corpora.

A pilekit folder is known by its header (`pilekit.json`), a result of `pilekit bpb` by `result.json`, a file of `pilekit
count` or `trace` by the header in its metadata, and a saved output of `stats --json` or `verify --json` by its fields.
Folders are searched for more of these. Everything else is a corpus, which a report counts.

An artefact holds the settings it was made with, but not the command line. So the command is written from the settings;
CORPUS stands for an input whose path the artefact does not hold.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilekit.artifacts.header import HEADER_FILE, Header, read_header
from pilekit.corpus import Manifest
from pilekit.corpus.shard import is_url
from pilekit.errors import PilekitError, message_logger
from pilekit.evaluate.results.result import RESULT_FILE
from pilekit.evaluate.results.result_folder import read_result
from pilekit.report.corpus import read_output
from pilekit.shards.verify.findings import some_names
from pilekit.stats.result import CorpusStats
from pilekit.trace.phrase_counts import PhraseCounts
from pilekit.trace.result_file import RowsResult, result_header
from pilekit.trace.traced_passages import TextTraces

logger = message_logger(__name__)

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
    "count": ("Counted phrases", "count"),
    "trace": ("Traced texts", "trace"),
}
"""The kinds of artefacts in the order of the page, each with the title of its section and its command."""

ROWS: dict[str, type[RowsResult]] = {"PHRASES": PhraseCounts, "TEXTS": TextTraces}
"""The results in Parquet files, by what their commands are asked for."""

WITH_HEADER = ("dedup", "cleaning", "decontamination", "substrings", "run")
"""The kinds that a folder's header names."""

DEPTH = 3
"""How many levels below a given folder are searched."""

_SUFFIXES = (".json", ".parquet")


@dataclass(frozen=True, slots=True)
class Artefact:
    """An artefact that a report shows, and the source of numbers on the page.

    kind       a key of `KINDS`
    path       the folder or file; for several, their names
    command    a command that makes it with these settings
    content    a corpus's paths, a folder's or file's header, a saved output, or results of `pilekit bpb`
    inputs     the names of the shards that were read, or ""
    made_by    the version of pilekit, or ""
    is_given   whether the user gave its path; if it is damaged, that is an error, and a found artefact is left out
    """

    kind: str
    path: str
    command: str
    content: Any
    inputs: str = ""
    made_by: str = ""
    is_given: bool = True


@contextmanager
def left_out_if_found(is_given: bool, left_out: list[str]) -> Iterator[None]:
    """Add the message of a `PilekitError` to `left_out`; raise it if the artefact was given."""
    try:
        yield
    except PilekitError as error:
        if is_given:
            raise
        left_out.append(str(error))
        logger.warning("left out: %s", error)


def sort_out(paths: Sequence[str | Path], left_out: list[str]) -> tuple[list[Artefact], list[str]]:
    """The artefacts at `paths`, each once, and the paths without any; several scores are also an artefact together.

    `left_out` gets the messages about damaged artefacts found in folders. PilekitError for a given one.
    """
    by_file: dict[str, Artefact] = {}
    corpora = []
    for path in map(str, paths):
        damaged_before, by_file_here = len(left_out), {}
        for file, is_given in [] if is_url(path) else _files(path):
            with left_out_if_found(is_given, left_out):
                if (artefact := _artefact(file, is_given)) is not None:
                    by_file_here[os.path.realpath(file)] = artefact
        if not by_file_here and len(left_out) == damaged_before:
            corpora.append(path)
        for file_path, artefact in by_file_here.items():
            by_file.setdefault(file_path, artefact)
    artefacts = list(by_file.values())
    scores = [artefact for artefact in artefacts if artefact.kind == "bpb"]
    if len(scores) > 1:
        names = [score.path for score in scores]
        command = shell_command("bpb", "--compare", *names)
        artefacts.append(Artefact("compared", ", ".join(names), command, [score.content for score in scores]))
    return artefacts, corpora


def counted_corpus(paths: Sequence[str], manifest: Manifest | str | Path | None, tokenizer: Any) -> Artefact:
    """The corpus at these paths as an artefact, which is counted with this manifest and tokenizer."""
    options = ["--tokenizer", str(tokenizer)] if isinstance(tokenizer, str | Path) else []
    if isinstance(manifest, Manifest):
        options += ["--text-field", manifest.text_field, "--label", manifest.label_path]
    elif manifest:
        options += ["--manifest", str(manifest)]
    command = shell_command("stats", *paths, "--copies", *options, "--on-error", "skip")
    return Artefact("stats", some_names(paths), command, list(paths))


def _files(path: str) -> Iterator[tuple[Path, bool]]:
    """The files that may name an artefact, and whether they were given. Hidden folders and links are not entered."""
    if not Path(path).is_dir():
        if path.endswith(_SUFFIXES):
            yield Path(path), True
        return

    def refuse(error: OSError) -> None:
        raise PilekitError(f"{error.filename}: cannot be read: {error.strerror}") from error

    for folder, folders, names in os.walk(path, onerror=refuse):
        is_last = len(Path(folder).relative_to(path).parts) == DEPTH
        folders[:] = [] if is_last else sorted(name for name in folders if not name.startswith("."))
        for file in sorted(Path(folder, name) for name in names if name.endswith(_SUFFIXES) and name[0] != "."):
            if not file.is_symlink():
                yield file, str(file.parent) == str(Path(path)) and file.name in (HEADER_FILE, RESULT_FILE)


def _artefact(file: Path, is_given: bool) -> Artefact | None:
    """The artefact that a file names; None if a report shows none."""
    folder = str(file.parent)
    if file.name == RESULT_FILE:
        protocol = (result := read_result(folder)).protocol
        model, limit = protocol["model"], protocol["limit"]
        options = ["--adapter", str(model["adapter"]["path"])] if "adapter" in model else []
        options += [] if limit is None else ["--limit", str(limit)]
        command = shell_command("bpb", str(model["path"] or "MODEL"), "CORPUS", *options, "--out", folder)
        inputs = some_names(shard["name"] for shard in protocol["data"])
        return Artefact("bpb", folder, command, result, inputs, protocol["pilekit"], is_given)
    if file.name == HEADER_FILE:
        header = read_header(folder)
        if (kind := header.kind) not in WITH_HEADER or (file.parent / RESULT_FILE).is_file():
            return None
        command = shell_command(KINDS[kind][1], *_arguments(header, folder), "--out", folder)
        inputs = some_names(name.removeprefix("/") for name in header.inputs)  # an evaluation's name has a slash
        return Artefact(kind, folder, command, header, inputs, header.pilekit, is_given)
    if file.suffix == ".parquet":
        for asked, answer in ROWS.items():
            if (rows := result_header(answer, file)) is not None:
                kind = answer.COMMAND
                command = shell_command(kind, asked, *_arguments(rows, folder), "--out", str(file))
                return Artefact(kind, str(file), command, rows, some_names(rows.inputs), rows.pilekit, is_given)
        return None
    saved = read_output(file)
    if saved is None and is_given:
        raise PilekitError(
            f"{file}: is no output of `pilekit stats --json` or `pilekit verify --json`; give one of "
            "these, a folder that a command wrote, or shards"
        )
    kind = "stats" if isinstance(saved, CorpusStats) else "verify"
    command = f"{shell_command(kind, 'CORPUS', '--json')} > {shlex.quote(str(file))}"
    return None if saved is None else Artefact(kind, str(file), command, saved, is_given=is_given)


def shell_command(*words: str) -> str:
    """A command of pilekit, quoted for a shell."""
    return shlex.join(("pilekit", *words))


FEW = 4
"""A command names at most this many shards. For more it names the folder that holds them."""
_NOT_OPTIONS = ("seed", "bands", "rows", "write", "spellings", "texts", "phrases")
_NAMES = {"label_path": "label"}
_STANDS_FOR = {"against": "EARLIER", "dedup": "EARLIER"}


def _arguments(header: Header, folder: str) -> Iterator[str]:
    """The paths and options that give the header's parameters."""
    if header.kind == "run":
        yield str(Path(folder) / "config.toml")
        return
    try:
        if search := header.results.get("/found"):
            paths = list(map(str, search["result"]["paths"].values()))
        else:
            paths = [str(header.results[name]["result"]["path"]) for name in header.inputs]
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
