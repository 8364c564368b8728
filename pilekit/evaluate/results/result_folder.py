"""DIR: the result of an evaluation and its records, from which an interrupted evaluation resumes.

    DIR/result.json                     the figures and their protocol, which names KEY; sealed, written at the end
        records/KEY/pilekit.json        the header: the protocol as parameters, the manifest as input
        records/KEY/records.RANK.jsonl  a line per document, appended as soon as the document is scored

A line may also hold numbers that belong to the document: the losses of its tokens, or its vector.

KEY is a hash of the model and of the part of the protocol that a record depends on (`record_key`). Records under one
KEY form one table, whichever ranks and runs made them; other models and protocols have folders of their own. The
figures are a function of the records alone, so `read_result` computes them again. The manifest of the header must be
the one that result.json was made with, because published figures come from it.

A kill or a full disk can tear the last line of a file. A torn line has no newline: it is ignored, and cut off when the
file is opened again, so its document is scored again. Every other line has a checksum, so that no changed digit becomes
a wrong figure. A run locks the folder, and each rank locks its own file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.atomic_write import check_target, write_json
from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import refuse_linked_folders
from pilekit.artifacts.header import read_header, write_header
from pilekit.artifacts.own_file import open_own, read_own
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.corpus import Manifest
from pilekit.errors import PilekitError
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import RESULT_FILE, BitsPerByte
from pilekit.evaluate.training_copies import TrainingCopies

RECORDS = "records"
KIND = "records"
RESULT = SealedKind(
    "a result of pilekit bpb",
    2,
    "score the model again with the same command, which adds what is missing and writes it again",
)
_NOT_IN_KEY = ("paper", "intervals", "skipped_lines", "labels", "records", "copies", "seen")

_decoder = msgspec.json.Decoder(ScoredDocument)


class StoredResult(SealedHeader, frozen=True, kw_only=True):
    """The content of result.json: `BitsPerByte.to_dict()`, and a hash of the manifest."""

    format: int = RESULT.format
    overall: dict[str, Any]
    weighted: dict[str, Any] | None
    subsets: dict[str, Any]
    published: dict[str, Any] | None
    warnings: list[str]
    training_copies: TrainingCopies | None
    protocol: dict[str, Any]
    manifest: str


class _Numbers(msgspec.Struct):
    items: bytes = b""


def record_line(document: ScoredDocument, items: bytes = b"") -> bytes:
    """The line of a document and its numbers, with a checksum and the newline; floats are read back exactly."""
    start = msgspec.json.encode(document)[:-1]
    if items:
        start += b"," + msgspec.json.encode(_Numbers(items))[1:-1]
    return _with_sum(start + b',"check":"')


def _with_sum(start: bytes) -> bytes:
    return start + xxhash.xxh3_64_hexdigest(start + b'"}').encode() + b'"}\n'


def read_line(line: bytes) -> ScoredDocument:
    """The document of a line; ValueError unless `record_line` wrote it."""
    if _with_sum(line[:-19]) != line:
        raise ValueError("its checksum does not fit")
    return _decoder.decode(line)


def record_key(protocol: dict[str, Any]) -> str:
    """A hash (32 hexadecimal digits) of the model and of the protocol's fields that a document's record depends on.

    All records under one key may form one table. The key does not depend on the paths of the model and its adapter, or
    on fields about the figures computed from records.
    """
    parts = {name: value for name, value in protocol.items() if name not in _NOT_IN_KEY}
    parts["model"] = {name: value for name, value in protocol["model"].items() if name != "path"}
    if "adapter" in parts["model"]:
        parts["model"]["adapter"] = parts["model"]["adapter"]["files"]
    parts["prefix"] = protocol["prefix"]["id"]
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=True).encode())


def records_folder(out: str | Path, key: str) -> Path:
    """The folder for the records of `key` in the folder `out`."""
    return Path(out) / RECORDS / key


@contextmanager
def record_file(path: Path) -> Iterator[Callable[[ScoredDocument, bytes], None]]:
    """Lock the file of a rank, cut off a torn last line, and yield a function that appends a document and its numbers.

    PilekitError if the file cannot be written.
    """
    with locked(path.with_name(f".{path.name}.lock"), wait=False):
        with writing(path):
            file = FileIO(open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, alone=True), "ab")
        with file:
            with writing(path), path.open("rb") as lines:
                file.truncate(sum(len(line) for line in lines if line.endswith(b"\n")))

            def append(document: ScoredDocument, items: bytes) -> None:
                unwritten = memoryview(record_line(document, items))
                with writing(path):
                    while unwritten:
                        unwritten = unwritten[file.write(unwritten) :]

            yield append
            with writing(path):
                os.fsync(file.fileno())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, an error of the file system is a PilekitError about the file at `path`."""
    try:
        yield
    except OSError as error:
        raise PilekitError(
            f"{path}: cannot be written: {error.strerror}; its records stay, and the same command resumes from them"
        ) from error


@contextmanager
def locked_records(out: str | Path, key: str, protocol: dict[str, Any], manifest: Manifest) -> Iterator[Records]:
    """Lock the folder of a run until the block ends, and yield the records of `key`.

    PilekitError if another process holds the folder, or if it cannot be written.
    """
    folder = records_folder(out, key)
    refuse_linked_folders(folder.parent, folder)
    with locked(folder.parent / ".lock", wait=False):
        for path in record_files(folder):  # a rank of a killed run may still write
            with record_file(path):
                pass
        write_header(folder, kind=KIND, parameters=protocol, inputs={"manifest": msgspec.to_builtins(manifest)})
        yield read_records(folder, [shard["name"] for shard in protocol["data"]], manifest)


def check_out(out: str | Path) -> None:
    """PilekitError if `out` cannot hold results: it has a model, a foreign result.json, or a file for a folder."""
    if os.path.lexists(Path(out) / "config.json"):
        raise PilekitError(f"{out}: holds a model (config.json); give --out a folder of its own")
    for folder in (Path(out), Path(out) / RECORDS):
        if os.path.lexists(folder) and not folder.is_dir():
            raise PilekitError(f"{folder}: is a file, where a folder belongs; name another --out")
    result = Path(out) / RESULT_FILE
    check_target(result)
    if result.exists() and not (Path(out) / RECORDS).exists() and b'"protocol"' not in result.read_bytes():
        raise PilekitError(f"{result}: is not of `pilekit bpb`; give --out a folder of its own")


def read_records(folder: Path, shards: list[str], manifest: Manifest) -> Records:
    """The records of all ranks and runs in the folder, perhaps none; `shards` are the names in the corpus.

    PilekitError for a damaged line, for a record of another shard, and for two records of one document.
    """
    try:
        documents = (document for path in record_files(folder) for _, document in lines_in(path))
        return Records.of(documents, shards, manifest)
    except OSError as error:
        raise PilekitError(f"{folder}: cannot be read: {error.strerror}") from error
    except PilekitError as error:
        raise PilekitError(
            f"{folder}: {error}; remove this folder, and the same command scores its documents again"
        ) from error


def record_files(folder: Path) -> list[Path]:
    """The files of all ranks in a folder of records."""
    return sorted(folder.glob("records.*.jsonl"))


def lines_in(path: Path) -> Iterator[tuple[int, ScoredDocument]]:
    """(first byte, document) of each line in a rank's file but a torn last one; PilekitError for a damaged line."""
    begin = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break  # torn
            try:
                yield begin, read_line(line)
            except ValueError as error:  # also msgspec's errors
                raise PilekitError(f"line {number} of {path.name} is damaged ({reason_of_damage(error)})") from error
            begin += len(line)


def read_numbers(
    folder: Path, item: npt.DTypeLike, records: Records
) -> Iterator[tuple[ScoredDocument, npt.NDArray[Any]]]:
    """Yield each document of `records`, all of which `folder` holds, with its numbers of type `item`."""
    places: dict[tuple[str, int], tuple[Path, int]] = {}
    for path in record_files(folder):
        places |= {(document.shard, document.number): (path, begin) for begin, document in lines_in(path)}
    for document in records.documents():
        path, begin = places[document.shard, document.number]
        with path.open("rb") as file:
            file.seek(begin)
            line = file.readline()
        yield document, np.frombuffer(msgspec.json.decode(line, type=_Numbers).items, item)


def write_result(out: str | Path, result: BitsPerByte, manifest: Manifest) -> None:
    """Write result.json into `out`."""
    stored = StoredResult(**result.to_dict(), manifest=_hash_of(manifest))
    write_json(Path(out) / RESULT_FILE, RESULT.sealed(stored))


def _hash_of(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(manifest, order="sorted"))


def has_result(out: str | Path, key: str) -> bool:
    """Whether `out` holds the result of the records of `key`."""
    try:
        return bool(json.loads((Path(out) / RESULT_FILE).read_bytes())["protocol"]["records"] == key)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def read_result(folder: str | Path) -> BitsPerByte:
    """The result that `bits_per_byte(..., out=folder)` returned, computed again from its records.

    PilekitError if there is no result.json, or if it and its records do not belong together.
    """
    path = Path(folder) / RESULT_FILE
    try:
        stored = RESULT.open_dict(path, RESULT.parsed(path, read_own(path)), StoredResult)
        protocol, key = stored.protocol, record_key(stored.protocol)
        folder_of_records = records_folder(folder, key)
        try:
            manifest = msgspec.convert(read_header(folder_of_records, KIND).inputs["manifest"], Manifest)
        except PilekitError as error:
            raise PilekitError(f"{error}; {RESULT.remedy}") from error
        records = read_records(folder_of_records, [shard["name"] for shard in protocol["data"]], manifest)
        result = replace(BitsPerByte.of(records, protocol, manifest), training_copies=stored.training_copies)
        figures = result.to_dict()
        is_same = all(figures[name] == getattr(stored, name) for name in ("overall", "weighted", "subsets"))
        if not is_same or protocol["records"] != key or stored.manifest != _hash_of(manifest):
            raise ValueError("other figures")
    except FileNotFoundError:
        raise PilekitError(
            f"{folder}: has no {RESULT_FILE}; score a model with --out, to its end, and give that folder"
        ) from None
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PilekitError(f"{path}: does not match its records in {RECORDS}/; {RESULT.remedy}") from error
    return result
