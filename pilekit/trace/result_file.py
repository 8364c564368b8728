"""`rows_result`: the result of a job whose rows stand in one Parquet file, with the header of a job folder as metadata.

A job works in OUT.unfinished/ until OUT is there, or in a temporary folder if it has no `out`. A killed run resumes
there, and a finished file is read again. A result keeps its file open, and reads the rows when they are asked for. So
a table of the first rows takes little memory, and a file that was removed is still there for its result.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.folders import cache_folder, make_folder, refuse_linked_folders
from pilekit.artifacts.header import FORMAT, Header, decode_header
from pilekit.artifacts.job_folder import check_same_job
from pilekit.artifacts.own_file import reading_own
from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP
from pilekit.display.table_result import TableResult
from pilekit.errors import PilekitError, message_logger
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.folder_job import FolderJob, corpus_folder
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.version import __version__

logger = message_logger(__name__)

_HEADER = b"pilekit"
_REMEDY = "name another file with --out, or remove this one"


@dataclass(frozen=True, repr=False)
class RowsResult(TableResult):
    """The base of the results: the `rows` of the file, the `summary` in its header, and the bad lines `skipped`.

    A result from another process has its rows in memory, and no file.
    """

    SCHEMA: ClassVar[pa.Schema]
    COMMAND: ClassVar[str]
    KIND: ClassVar[str]

    file: pa.NativeFile | None = field(repr=False)
    summary: dict[str, Any]
    skipped: SkippedLines

    @cached_property
    def rows(self) -> pa.Table:
        """All rows, in memory."""
        return pq.ParquetFile(self.file).read()

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in batches of up to so many, read when they are asked for; `columns` are all by default."""
        if self.file is None:
            yield from self.rows.select(columns or self.SCHEMA.names).to_batches(rows)
        else:
            yield from pq.ParquetFile(self.file).iter_batches(rows, columns=columns)

    def first_rows(self, count: int) -> pa.Table:
        """The first `count` rows, without reading the others."""
        batch = next(self.batches(count), None)
        return self.SCHEMA.empty_table() if batch is None else pa.Table.from_batches([batch])

    def rows_at(self, numbers: Sequence[int], at_a_time: int = ROWS_PER_GROUP) -> list[dict[str, Any]]:
        """The rows of these numbers, from 0, in this order, without reading more than `at_a_time` together."""
        rows, before, sought = dict[int, dict[str, Any]](), 0, np.unique(numbers)
        for batch in self.batches(at_a_time) if len(sought) else ():
            here = sought[(sought >= before) & (sought < before + len(batch))]
            rows |= zip(here.tolist(), batch.take(pa.array(here - before, pa.int64())).to_pylist(), strict=True)
            before += len(batch)
        return [rows[number] for number in numbers]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return (self.summary, self.skipped) == (other.summary, other.skipped) and bool(self.rows.equals(other.rows))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rows": self.rows, "file": None}

    def to_arrow(self) -> pa.Table:
        """The rows."""
        return self.rows

    def __repr__(self) -> str:
        numbers = (f"{name}={count:,}" for name, count in self.summary.items() if type(count) is int)
        return f"{type(self).__name__}({', '.join(numbers)})"


Answer = TypeVar("Answer", bound=RowsResult)


class Content(NamedTuple):
    """The content of a result: batches of its rows, which read files of the job's folder, and the other fields."""

    batches: Iterable[pa.RecordBatch]
    summary: dict[str, Any]
    skipped: SkippedLines


def rows_result(
    answer: type[Answer],
    out: str | Path | None,
    job: CorpusJob,
    parameters: Mapping[str, Any],
    make: Callable[[FolderJob], Content],
) -> Answer:
    """The result of a command on the shards of `job`: read from the file `out` if it is finished, else made.

    The rows of a part are not written to `out`, because its shards wait for the other parts. PilekitError for a part
    without `out`, if another job wrote `out`, and if an earlier run skipped lines that are errors now.
    """
    if job.part is not None and out is None:
        raise PilekitError(f"the results of parts of {answer.COMMAND} are kept in a file; name it with out")
    with _result_file(out, job, answer.COMMAND) as path, tempfile.TemporaryDirectory(prefix="pilekit-part-") as part:
        refuse_linked_folders(folder := Path(f"{path}.unfinished"))
        result = _finished_result(answer, path, job, parameters)
        if result is None:
            with corpus_folder(job, folder, kind=answer.KIND, parameters=parameters) as folder_job:
                batches, summary, skipped = make(folder_job)
                results = {"summary": summary, "skipped": skipped.count, "bad_lines": skipped.listed()}
                written = path if job.part is None else Path(part, "rows.parquet")
                _write(answer, written, batches, parameters, folder_job.inputs, results)
            result = answer(_opened(written), summary, skipped)
        if job.part is None:
            shutil.rmtree(folder, ignore_errors=True)  # A run that was killed at its end leaves it.
    if job.on_error == "raise" and result.skipped.count:
        raise bad_line_error(result.skipped.examples[0])
    return result


@contextmanager
def _result_file(out: str | Path | None, job: CorpusJob, command: str) -> Iterator[Path]:
    """The path of the Parquet file; without `out` in a temporary folder, which the nodes of a cluster share."""
    if out is not None:
        check_target(out, follow_links=True)
        yield Path(out)
        return
    if (shared := None if job.cluster is None else cache_folder()) is not None:
        make_folder(shared)
    with tempfile.TemporaryDirectory(prefix=f"pilekit-{command}-", dir=shared) as folder:
        yield Path(folder, "result.parquet")


def _finished_result(answer: type[Answer], path: Path, job: CorpusJob, parameters: Mapping[str, Any]) -> Answer | None:
    """The result in the file at `path`; None if there is none. PilekitError if another job wrote it."""
    if not path.exists():
        return None
    header = result_header(answer, path)
    if header is None:
        raise PilekitError(f"{path}: exists, and is no result of pilekit {answer.COMMAND}; {_REMEDY}")
    check_same_job(path, header, parameters, inputs_for(path, job.corpus.shards).fingerprints, _REMEDY)
    with reading_rows(answer, path) as rows:
        for _ in rows.iter_batches(ROWS_PER_GROUP):
            pass  # Damage is told here.
    logger.warning("already done: %s holds this result; to make it again, remove it first", path)
    return _result_in(answer, path, header)


def saved_result(answer: type[Answer], path: Path) -> Answer:
    """The result in a finished file; PilekitError for any other file. Read its rows in `reading_rows`."""
    header = result_header(answer, path)
    if header is None:
        command = answer.COMMAND
        raise PilekitError(
            f"{path}: is no result of pilekit {command}; name a file that `pilekit {command} --out` wrote"
        )
    return _result_in(answer, path, header)


def _result_in(answer: type[Answer], path: Path, header: Header) -> Answer:
    return answer(_opened(path), header.results["summary"], SkippedLines.from_note(header.results))


def result_header(answer: type[RowsResult], path: str | Path) -> Header | None:
    """The header of the result at `path`; None for any other file. PilekitError for a result of a later pilekit."""
    try:
        with reading_own(path) as file, pq.ParquetFile(file) as rows:
            encoded = (rows.schema_arrow.metadata or {})[_HEADER]
        kind = msgspec.json.decode(encoded, type=dict[str, Any]).get("kind")
    except (OSError, pa.ArrowException, KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decode_header(encoded, path) if kind == answer.KIND else None


@contextmanager
def reading_rows(answer: type[RowsResult], path: str | Path) -> Iterator[pq.ParquetFile]:
    """The file of a result; an error in the block, and other columns, are a `PilekitError` about a damaged file."""
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(answer.SCHEMA):
                raise ValueError("it has other columns")
            yield file
    except (OSError, ValueError, TypeError, LookupError, pa.ArrowException) as error:
        remedy = f"remove it, and run `pilekit {answer.COMMAND}` again"
        raise PilekitError(f"{path}: is damaged ({reason_of_damage(error)}); {remedy}") from error


def _write(
    answer: type[RowsResult],
    path: Path,
    batches: Iterable[pa.RecordBatch],
    parameters: Mapping[str, Any],
    inputs: Inputs,
    results: dict[str, Any],
) -> None:
    """Write the file."""
    header = Header(
        format=FORMAT,
        pilekit=__version__,
        kind=answer.KIND,
        parameters=dict(parameters),
        inputs=inputs.fingerprints,
        finished=True,
        results=results,
    )
    schema = answer.SCHEMA.with_metadata({_HEADER: msgspec.json.encode(header)})
    with write_atomically(path, follow_links=True) as file, pq.ParquetWriter(file, schema, compression="zstd") as rows:
        for batch in batches:
            rows.write_batch(batch)


def _opened(path: Path) -> pa.NativeFile:
    return pa.OSFile(os.fsencode(path))
