"""The Parquet file of a finished job, with the header of a job folder in its metadata.

A job works in OUT.unfinished/ until OUT is there, or in a temporary folder if it has no `out`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.artifacts.folders import cache_folder, make_folder
from pilekit.artifacts.header import FORMAT, Header, decode_header
from pilekit.artifacts.job_folder import check_same_job
from pilekit.errors import PilekitError, message_logger
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.version import __version__

logger = message_logger(__name__)

_HEADER = b"pilekit"
_REMEDY = "name another file with --out, or remove this one"


@contextmanager
def result_file(out: str | Path | None, job: CorpusJob, command: str) -> Iterator[Path]:
    """The path of the Parquet file; without `out` in a temporary folder, which the nodes of a cluster share."""
    if out is not None:
        check_target(out, follow_links=True)
        yield Path(out)
        return
    if (shared := None if job.cluster is None else cache_folder()) is not None:
        make_folder(shared)
    with tempfile.TemporaryDirectory(prefix=f"pilekit-{command}-", dir=shared) as folder:
        yield Path(folder, "result.parquet")


def finished_result(
    path: Path, job: CorpusJob, command: str, kind: str, parameters: Mapping[str, Any]
) -> tuple[pa.Table, dict[str, Any]] | None:
    """The rows and results in the file at `path`; None if there is none. PilekitError if another job wrote it."""
    if not path.exists():
        return None
    try:
        rows = read_rows(path)
        encoded = (rows.schema.metadata or {}).get(_HEADER)
    except (OSError, pa.ArrowException):
        encoded = None
    header = None if encoded is None else decode_header(encoded, path)
    if header is None or header.kind != kind:
        raise PilekitError(f"{path}: exists, and is no result of pilekit {command}; {_REMEDY}")
    check_same_job(path, header, parameters, inputs_for(path, job.corpus.shards).fingerprints, _REMEDY)
    logger.warning("already done: %s holds this result; to make it again, remove it first", path)
    return rows, header.results


def write_result(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    kind: str,
    parameters: Mapping[str, Any],
    inputs: Inputs,
    results: Mapping[str, Any],
) -> pa.Table:
    """Write the file, and return its rows."""
    header = Header(
        format=FORMAT,
        pilekit=__version__,
        kind=kind,
        parameters=dict(parameters),
        inputs=inputs.fingerprints,
        finished=True,
        results=dict(results),
    )
    schema = schema.with_metadata({_HEADER: msgspec.json.encode(header)})
    with write_atomically(path, follow_links=True) as file, pq.ParquetWriter(file, schema, compression="zstd") as rows:
        for batch in batches:
            rows.write_batch(batch)
    return read_rows(path)


def read_rows(path: Path) -> pa.Table:
    """All rows of a Parquet file."""
    with pq.ParquetFile(path) as file:
        return file.read()
