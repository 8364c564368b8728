"""`cut_substrings`: a corpus without passages of earlier documents, with the earliest place of each.

    anchors (each shard) -> filter -> windows (each shard) -> runs -> cut (each shard) -> repeats.parquet, summary.json

Each step's files are complete or absent; after a kill, the next run makes the rest. `repeats.parquet`, `clean/` and
`summary.json` stay; `scratch/` is removed. The result depends only on the shards and the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.free_disk import check_free_disk
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.corpus.shard import is_url
from pilekit.cutting.cut_job import FOUND, SCRATCH, CutJob, cut_job
from pilekit.cutting.cut_repeats import ROWS, locate_cuts, without
from pilekit.cutting.cut_result import REPEATS, Substrings
from pilekit.cutting.cut_shards import BYTES_REMOVED, COUNTS
from pilekit.cutting.passages import frequent_passages
from pilekit.cutting.repeats import Selection, find_runs, repeated_anchors, scan
from pilekit.dedup.deduplicated import Deduplicated
from pilekit.dedup.match.population import MAX_DOCUMENTS
from pilekit.engine import Advance, Ray
from pilekit.errors import PilekitError, visible
from pilekit.progress import Report
from pilekit.shards.fingerprint import Fingerprint, Inputs
from pilekit.shards.read.reader import OnError

KIND = "substrings"
PASSAGES, PASSAGE_CHARACTERS = 10, 200
"""The passages in the summary, and the characters of each."""

_SCRATCH_BYTES = 8
"""About the bytes on disk per stored byte: 1.5 per byte of text in windows, and as much to sort them."""


class _Options(msgspec.Struct):
    """The arguments of `cut_substrings` that have a range."""

    min_bytes: Annotated[int, msgspec.Meta(ge=8, le=1 << 16)]
    memory: Annotated[int, msgspec.Meta(ge=64 * 10**6)]
    jobs: Annotated[int, msgspec.Meta(ge=1)] | None
    on_error: OnError


def cut_substrings(
    data: Corpus | str | Path | Sequence[str | Path] | None = None,
    *,
    min_bytes: int = 100,
    dedup: str | Path | None = None,
    subsets: str | Sequence[str] | None = None,
    only: bool = False,
    out: str | Path = "substrings",
    write: bool = True,
    memory: int = 4 << 30,
    jobs: int | None = None,
    on_error: OnError = "raise",
    manifest: Manifest | str | Path | None = None,
    advance: Report | None = None,
    engine: Ray | None = None,
) -> Substrings:
    """Cut passages of earlier documents out of each document, and write the result into the folder `out`.

    data       a `Corpus`, or a path, glob or URL, or several of them
    min_bytes  the shortest run of UTF-8 bytes that counts
    dedup      folder of a finished dedup; documents that it removed are left out
    subsets    compare the documents of these subsets with each other, in any spelling the manifest knows; None: all
    only       leave out the documents of other subsets, rather than pass them through
    write      write the clean shards; else only the table and the summary
    memory     bytes for sorting, at least 64 MB; the processes' own memory is extra
    jobs       number of shards at a time, each in its own process; None: the usable CPUs
    on_error   "raise": a bad line is a `PilekitError`; "skip": it is counted and listed
    advance    receives the progress of each step
    engine     a cluster instead of local processes; this node sorts

    A killed run is resumed; a repeated finished run returns at once.
    """
    try:
        given = (min_bytes, memory, jobs, on_error)
        msgspec.convert(dict(zip(_Options.__struct_fields__, given, strict=True)), _Options)
    except msgspec.ValidationError as error:
        raise PilekitError(f"cut_substrings: {visible(str(error), 200)}") from None
    if dedup == "":
        raise PilekitError("dedup is empty; name a folder")
    corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
    removed = None if dedup is None else Path(dedup)
    parameters = {"min_bytes": min_bytes, "dedup": None if removed is None else Deduplicated(removed).identity}
    options: dict[str, Any] = {"subsets": subsets, "only": only, "write": write, "jobs": jobs}
    options |= {"on_error": on_error, "advance": advance, "engine": engine}
    with cut_job(corpus, out, kind=KIND, parameters=parameters, **options) as job:
        selection = Selection(job.compared, only, removed, corpus.manifest, on_error)
        for shard in corpus.shards:
            mask = selection.mask(shard)
            if mask is not None and not mask.fits(Fingerprint(*job.inputs.fingerprints[shard.name])):
                raise PilekitError(
                    f"{visible(shard.path)}: is not the shard that was deduplicated in {visible(str(dedup))}"
                )
        if not job.output.finished:
            found = job.found() or _find(job, min_bytes, selection, memory)
            job.cut(found, REPEATS, (*COUNTS, BYTES_REMOVED), pieces=without, mask_of=selection.mask)
        return Substrings(*job.result())


def _find(job: CutJob, length: int, selection: Selection, memory: int) -> dict[str, Any]:
    """Find all repeats, and write and note the table."""
    output, shards, scratch, own = job.output, job.corpus.shards, job.scratch, job.own_scratch
    stored = sum(size for size, _ in job.inputs.fingerprints.values())
    there = sum(path.stat().st_size for path in output.folder.rglob("*") if path.is_file())
    check_free_disk(output.folder, _SCRATCH_BYTES * stored - there, "comparing")
    scanning: dict[str, Any] = {"make": scan, "length": length, "selection": selection}
    read = _rows(job, "reading", "anchors", **scanning)
    bases = np.cumsum([0, *(of["lines"] for of in read.values())])
    if bases[-1] >= MAX_DOCUMENTS:
        raise PilekitError(f"{bases[-1]:,} documents are more than can be compared at once; take fewer shards")
    of_shard, filter = dict(zip(read, bases.tolist(), strict=False)), scratch / "filter.npy"
    np.save(filter, repeated_anchors(*_sorting(job, "sorting", "anchors"), bases, own, memory))
    _rows(job, "comparing", "windows", [filter], filter=filter, bases=of_shard, **scanning)
    runs = scratch / "runs"
    starts = find_runs(*_sorting(job, "sorting again", "windows"), bases, runs, own, length, memory)
    located: dict[str, Any] = {"runs": runs, "starts": starts, "bases": of_shard, "manifest": job.corpus.manifest}
    _rows(job, "locating", "cuts", [runs], make=locate_cuts, **located)
    table = output.folder / REPEATS
    with write_atomically(table) as file, pq.ParquetWriter(file, ROWS, compression="zstd") as writer:
        for path in _files(output, "cuts", shards):
            with pq.ParquetFile(path) as part:
                for batch in part.iter_batches():
                    writer.write_batch(batch)
    urls = {shard.name: shard.path for shard in shards}
    paths = {name: path if is_url(path) else str(Path(path).absolute()) for name, path in urls.items()}
    limits: dict[str, Any] = {"most": PASSAGES, "rows": 1, "scratch": own, "memory": memory}
    most = frequent_passages(table, paths, job.corpus.manifest, **limits)
    passages = [{"count": one.count, "text": one.text[:PASSAGE_CHARACTERS]} for one in most]
    found = {"read": read, "summary": {"passages": passages}, "paths": paths}
    output.note(FOUND, found, table)
    return found


def _files(output: Output, name: str, shards: Sequence[Shard]) -> list[Path]:
    """The files of a step in `scratch/`, one for each shard."""
    return [output.path(f"{SCRATCH}/{name}/{shard.name}", "") for shard in shards]


def _rows(job: CutJob, step: str, name: str, needs: Sequence[Path] = (), **options: Any) -> dict[str, dict[str, Any]]:
    """Do work that reads `needs` and writes a file for each shard; its results."""
    return job.each_shard(step, f"/{name}/", _note_rows, needs, name=name, **options)


def _sorting(job: CutJob, step: str, name: str) -> tuple[list[Path], Advance]:
    """The files of a step, and the progress of sorting them."""
    files = _files(job.output, name, job.corpus.shards)
    return files, job.progress(step, sum(file.stat().st_size for file in files))


def _note_rows(
    shard: Shard,
    advance: Advance,
    *,
    make: Callable[..., dict[str, Any]],
    output: Output,
    inputs: Inputs,
    name: str,
    **options: Any,
) -> None:
    [path] = _files(output, name, [shard])
    result = make(shard, advance, path=path, **options)
    inputs.check(shard)
    output.note(f"/{name}/{shard.name}", result, path)
