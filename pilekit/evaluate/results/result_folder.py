"""DIR: what an evaluation leaves behind, and from which an interrupted one resumes.

    DIR/result.json                     the figures and their protocol, which names KEY; written when all is scored
        records/KEY/pilekit.json        the header: the protocol as parameters, the manifest as input
        records/KEY/records.RANK.jsonl  a line per document, appended as soon as the document is scored

KEY is a hash of the model and of all of the protocol that a record depends on. Records under one KEY belong in one
table, on however many ranks and in however many runs they were made; other models and protocols have folders of their
own. The figures are a function of the records alone, so `read_result` makes them again, to the last bit. From
result.json it takes KEY, the number of documents, and the variant of the figures (`paper` is no part of KEY): the
header is of the last run, which may not have finished.

A kill or a full disk can tear the last line of a file. A torn line has no newline: it is not read, and cut off when the
file is opened again, so its document is scored again. Every other line that is not as it was written is an error.

One run holds the folder at a time, by a lock; each rank holds a lock on its file too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import xxhash

from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.header import read_header, write_header
from pilekit.artifacts.own_file import open_own
from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import RESULT_FILE, BitsPerByte
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.training_copies import TrainingCopies

RECORDS = "records"
KIND = "records"


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a record file; `check` is the hash of the line without it."""

    shard: str
    document: int
    text: int
    subset: str
    bytes: int
    tokens: int
    nll: float
    check: str = ""


_decoder = msgspec.json.Decoder(_Line)


def record_line(document: ScoredDocument) -> bytes:
    """The line of a document, its newline included; numbers come back as they were, to the last bit."""
    of = document
    line = msgspec.json.encode(_Line(of.shard, of.number, of.text, of.subset, of.bytes, of.tokens, of.nll))
    check = xxhash.xxh3_64_hexdigest(line).encode()
    return line.removesuffix(b'""}') + b'"%s"}\n' % check


def read_line(line: bytes) -> ScoredDocument:
    """The document of a line; ValueError unless `record_line` wrote it so."""
    of = _decoder.decode(line)
    document = ScoredDocument(of.shard, of.document, of.text, of.subset, of.bytes, of.tokens, of.nll)
    if record_line(document) != line:
        raise ValueError("it is not what was written")
    return document


def records_folder(out: str | Path, key: str) -> Path:
    """Where the records under `key` lie in the folder `out`."""
    return Path(out) / RECORDS / key


@contextmanager
def record_file(path: Path) -> Iterator[Callable[[ScoredDocument], None]]:
    """Lock the file of a rank, cut off a torn last line, and yield the function that appends a document."""
    with locked(path.with_name(f".{path.name}.lock"), wait=False):
        with _writing(path):
            file = os.fdopen(open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, alone=True), "ab", buffering=0)
        with file:
            with _writing(path):
                file.truncate(path.read_bytes().rfind(b"\n") + 1)

            def append(document: ScoredDocument) -> None:
                rest = memoryview(record_line(document))
                with _writing(path):
                    while rest:
                        rest = rest[file.write(rest) :]

            yield append
            with _writing(path):
                os.fsync(file.fileno())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PilekitError(
            f"{visible(str(path))}: cannot be written: {error.strerror}; its records stay, and the same command "
            "resumes from them"
        ) from error


@contextmanager
def held_folder(out: str | Path, key: str, protocol: dict[str, Any], manifest: Manifest) -> Iterator[Records]:
    """Lock the folder of a run until the block ends, and yield what is recorded under `key`.

    PilekitError where another process holds it, where it cannot be written, and where it is no folder for results.
    """
    check_out(out)
    folder = records_folder(out, key)
    with locked(folder.parent / ".lock", wait=False):
        for path in _record_files(folder):  # of all ranks; one whose rank 0 was killed may still write
            with record_file(path):
                pass
        parameters, inputs = protocol, {"manifest": msgspec.to_builtins(manifest)}
        write_header(folder, kind=KIND, parameters=parameters, inputs=inputs, results={"sum": _sum(parameters, inputs)})
        yield read_records(folder, [shard["name"] for shard in protocol["data"]], manifest)


def check_out(out: str | Path) -> None:
    """PilekitError where `out` is no folder for results: where it holds a model, or its records/ is a file."""
    if os.path.lexists(Path(out) / "config.json"):
        raise PilekitError(
            f"{visible(str(out))}: holds a model (config.json), and could be taken for either with results beside it; "
            "give --out a folder of its own"
        )
    folder = Path(out) / RECORDS
    if os.path.lexists(folder) and not folder.is_dir():
        raise PilekitError(f"{visible(str(folder))}: is a file, where a folder of records belongs; name another --out")


def read_records(folder: Path, shards: list[str], manifest: Manifest) -> Records:
    """All records of the folder, of all ranks and runs; none where there is nothing. `shards` is the corpus's.

    PilekitError for a damaged line, for a record of another shard, and where two records of one document differ.
    """

    def documents() -> Iterator[ScoredDocument]:
        for path in _record_files(folder):
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break  # torn
                    try:
                        yield read_line(line)
                    except ValueError as error:  # also what msgspec raises
                        raise PilekitError(f"line {number} of {visible(path.name)} is damaged ({error})") from error

    try:
        return Records.of(documents(), shards, manifest)
    except OSError as error:
        raise PilekitError(f"{visible(str(folder))}: cannot be read: {error.strerror}") from error
    except PilekitError as error:
        raise PilekitError(
            f"{visible(str(folder))}: {error}; remove this folder, and the same command scores its documents again"
        ) from error


def _record_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("records.*.jsonl"))


class _ToldProtocol(msgspec.Struct):
    records: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-zA-Z]+\Z")]
    paper: bool
    skipped_lines: int
    labels: list[str] | msgspec.UnsetType = msgspec.UNSET


class _ToldOverall(msgspec.Struct):
    documents: int
    bpb: float | None = None
    pseudo_bpb: float | None = None


class _Told(msgspec.Struct):
    """What is taken from a result.json."""

    overall: _ToldOverall
    protocol: _ToldProtocol
    training_copies: TrainingCopies | None = None


def read_result(folder: str | Path) -> BitsPerByte:
    """The result that `bits_per_byte(..., out=folder)` returned, made again from its records.

    PilekitError if there is no result.json, if it names no records, or if they are not all there or damaged.
    """
    path = Path(folder) / RESULT_FILE
    shown = visible(str(path))
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_Told)
    except FileNotFoundError:
        raise PilekitError(
            f"{visible(str(folder))}: has no {RESULT_FILE}; score a model with --out, to its end, and give that folder"
        ) from None
    except OSError as error:
        raise PilekitError(f"{shown}: cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError, RecursionError):
        raise PilekitError(
            f"{shown}: is no result with records; score the model again with `pilekit bpb --out`"
        ) from None
    records_of = records_folder(folder, told.protocol.records)
    header = read_header(records_of, KIND)
    if header.results != {"sum": _sum(header.parameters, header.inputs)}:
        raise PilekitError(
            f"{visible(str(records_of))}: its header is not what was written; score the model again with the same "
            "command, which writes it anew"
        )
    manifest = msgspec.convert(header.inputs["manifest"], Manifest)
    records = read_records(records_of, [shard["name"] for shard in header.parameters["data"]], manifest)
    if len(records) != told.overall.documents:
        raise PilekitError(
            f"{shown}: is of {told.overall.documents:,} documents, but {len(records):,} are recorded in {RECORDS}/; "
            "score the model again with the same command, which adds what is missing"
        )
    result = tabulate(records, {**header.parameters, **msgspec.to_builtins(told.protocol)}, manifest)
    if getattr(told.overall, result.key) != result.overall.bpb:  # sums are exact, so it is the same to the last bit
        raise PilekitError(
            f"{shown}: is not what was written: its overall {result.key} is not that of its records; score the model "
            "again with the same command, which writes it anew"
        )
    return replace(result, training_copies=told.training_copies)


def _sum(parameters: dict[str, Any], inputs: dict[str, Any]) -> str:
    """Of what figures are made of beside the records, so that no edited protocol is taken for theirs."""
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode([parameters, inputs]))
