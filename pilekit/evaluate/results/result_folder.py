"""DIR: what an evaluation leaves behind, and how an interrupted one goes on.

    DIR/result.json               the figures and their whole protocol, which names KEY; there when all is scored
        records/KEY.<rank>.jsonl  a line per document, written the moment it is scored
        records/KEY.json          what KEY stands for: the protocol and the manifest (`key_file`)
        records/pilekit.json      says that these are no shards

KEY is a hash of the model and of all of the protocol that a record depends on, so records under one key belong in one
table, on however many ranks and in however many runs they were made, and those of other models and protocols lie beside
them untouched. The table is a function of the records alone: `read_result` makes it again, to the last bit. Of
result.json, which is written when all is whole, it takes KEY, how many documents there were, and which variant of the
figures it holds (`paper`, of which KEY is no hash): KEY.json is of the last run, which may not have come to its end.

A line is written whole, with one call, behind the last whole one, and carries a sum of its own: what a kill or a full
disk tears is cut off when the rank's file is opened again, and what is damaged otherwise is passed over with a warning;
both are scored again. So at most what was being scored is lost: the batch under way, and what is done of the windows
of documents that it did not complete.

One run holds the folder at a time, by the kernel's lock on records/.lock, which ends with its process.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec
import xxhash

from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.header import HEADER_FILE, read_header, write_header
from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.key_file import read_key_file, write_key_file
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import RESULT_FILE, BitsPerByte
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.training_copies import TrainingCopies

logger = logging.getLogger(__name__)

RECORDS = "records"
KIND = "records"
_SUM = len(b',"check":"0123456789abcdef"}')


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a record file, but for its sum."""

    shard: str
    document: int
    text: int
    subset: str
    bytes: int
    tokens: int
    nll: float


_decoder = msgspec.json.Decoder(_Line)


def record_line(document: ScoredDocument) -> bytes:
    """The line of a document, its newline included; numbers come back as they were, to the last bit."""
    of = document
    line = msgspec.json.encode(_Line(of.shard, of.number, of.text, of.subset, of.bytes, of.tokens, of.nll))
    return line[:-1] + f',"check":"{xxhash.xxh3_64_hexdigest(line)}"}}\n'.encode()


def read_line(line: bytes) -> ScoredDocument | None:
    """The document of a line without its newline; None if it is not as `record_line` wrote it."""
    body = line[:-_SUM] + b"}"
    if line[-_SUM:] != f',"check":"{xxhash.xxh3_64_hexdigest(body)}"}}'.encode():
        return None
    try:
        of = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return ScoredDocument(of.shard, of.document, of.text, of.subset, of.bytes, of.tokens, of.nll)


class RecordFile:
    """The record file of one rank, to be appended to; what stands behind its last whole line is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock()
                self.end = _end_of_lines(self.file)
                os.ftruncate(self.file, self.end)
            except BaseException:
                os.close(self.file)
                raise

    def append(self, document: ScoredDocument) -> None:
        """Write a document's line: all of it, or PilekitError and nothing, as on a full disk."""
        line = record_line(document)
        written = 0
        try:
            with self._told():
                while written < len(line):
                    written += os.pwrite(self.file, line[written:], self.end + written)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self.file, self.end)
            raise
        self.end += len(line)

    def close(self) -> None:
        """See to it that all of it is on disk."""
        try:
            with self._told():
                os.fsync(self.file)
        finally:
            os.close(self.file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            os.close(self.file)

    def _lock(self) -> None:
        """A rank of a run whose rank 0 is dead may still write."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PilekitError(f"{visible(str(self.path))}: another process writes it; wait until it is done") from None
        except OSError:
            return  # a file system without locks

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PilekitError(
                f"{visible(str(self.path))}: cannot be written: {error.strerror}; what is recorded stays, and the same "
                "command goes on from there"
            ) from error


def record_path(out: str | Path, key: str, rank: int) -> Path:
    """The record file of a rank in the folder `out`."""
    return Path(out) / RECORDS / f"{key}.{rank}.jsonl"


def _end_of_lines(file: int) -> int:
    """The bytes up to the last newline and with it."""
    end = os.fstat(file).st_size
    while end > 0:
        begin = max(0, end - (1 << 16))
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


@contextmanager
def held_folder(out: str | Path, key: str, protocol: dict[str, Any], manifest: Manifest) -> Iterator[Records]:
    """Hold the folder of a run until the block ends, made if it is missing; yields what is recorded under `key`.

    PilekitError where another process holds it, where it cannot be written, and where it is no folder for results.
    """
    check_out(out)
    folder = Path(out) / RECORDS
    with locked(folder / ".lock", wait=False):
        if not (folder / HEADER_FILE).exists():
            write_header(folder, kind=KIND, parameters={}, inputs={})
        write_key_file(folder / f"{key}.json", protocol, manifest)
        for path in sorted(folder.glob(f"{key}.*.jsonl")):  # also of ranks that this run may not have
            RecordFile(path).close()
        yield read_records(out, key, [shard["name"] for shard in protocol["data"]], manifest)


def check_out(out: str | Path) -> None:
    """PilekitError where `out` is no folder for results: where it holds a model, or its records/ is something else."""
    if os.path.lexists(Path(out) / "config.json"):
        raise PilekitError(
            f"{visible(str(out))}: holds a model (config.json), and could be taken for either with results beside it; "
            "give --out a folder of its own"
        )
    folder = Path(out) / RECORDS
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise PilekitError(f"{visible(str(folder))}: is a file, where a folder of records belongs; name another --out")
    if (folder / HEADER_FILE).exists():
        read_header(folder, KIND)
    elif others := sorted(name for name in os.listdir(folder) if not name.startswith((".lock", HEADER_FILE))):  # noqa: PTH208
        raise PilekitError(
            f"{visible(str(folder))}: holds something that is no record of an evaluation ({visible(others[0], 60)}); "
            "name another --out"
        )


def read_records(out: str | Path, key: str, shards: list[str], manifest: Manifest) -> Records:
    """All records under `key`, of all ranks and runs; none where there is nothing. `shards` is the corpus's.

    Damaged lines are passed over, and copies of a line, which a warning says. PilekitError where a record is not of
    these shards, or two of one document differ.
    """
    folder = Path(out) / RECORDS
    damaged = 0

    def documents() -> Iterator[ScoredDocument]:
        nonlocal damaged
        for path in sorted(folder.glob(f"{key}.*.jsonl")):
            with path.open("rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # torn
                    if (document := read_line(line[:-1])) is None:
                        damaged += 1
                    else:
                        yield document

    try:
        records = Records.of(documents(), shards, manifest)
    except OSError as error:
        raise PilekitError(f"{visible(str(folder))}: cannot be read: {error.strerror}") from error
    except PilekitError as error:
        raise PilekitError(
            f"{visible(str(folder / key))}.*.jsonl: {error}; remove these files to score it all again"
        ) from error
    if damaged:
        lines = "1 line is" if damaged == 1 else f"{damaged:,} lines are"
        logger.warning("%s.*.jsonl: %s damaged and passed over", visible(str(folder / key)), lines)
    return records


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
    """What is taken of a result.json."""

    overall: _ToldOverall
    protocol: _ToldProtocol
    training_copies: TrainingCopies | None = None


def read_result(folder: str | Path) -> BitsPerByte:
    """What `bits_per_byte(..., out=folder)` found, made again of its records, which it comes with.

    PilekitError if there is no result.json, if it names no records, or if not all of them are there.
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
    key, documents = told.protocol.records, told.overall.documents
    protocol, manifest = read_key_file(Path(folder) / RECORDS / f"{key}.json")
    records = read_records(folder, key, [shard["name"] for shard in protocol["data"]], manifest)
    if len(records) != documents:
        raise PilekitError(
            f"{shown}: is of {documents:,} documents, but {len(records):,} are recorded in {RECORDS}/; score the model "
            "again with the same command, which adds what is missing"
        )
    result = tabulate(records, {**protocol, **msgspec.to_builtins(told.protocol)}, manifest)
    if getattr(told.overall, result.key) != result.overall.bpb:  # sums are exact, so it is the same to the last bit
        raise PilekitError(
            f"{shown}: is not what was written: its overall {result.key} is not that of its records; score the model "
            "again with the same command, which writes it anew"
        )
    return replace(result, training_copies=told.training_copies)
