"""`substrings_corpus`: a corpus without passages of earlier documents, with the earliest place of each.

    anchors (each shard) -> filter -> windows (each shard) -> runs -> cuts (each shard) -> repeats.parquet
        -> cut (each shard) -> summary.json

`repeats.parquet`, `clean/` and `summary.json` stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.free_disk import bytes_below, check_free_disk
from pilekit.artifacts.parquet_rows import join_tables
from pilekit.corpus import Corpus, Described, HeldOutShards, Source
from pilekit.cutting.cut_job import COUNTS, CutJob, cut_corpus
from pilekit.cutting.cut_repeats import ROWS, locate_cuts, without
from pilekit.cutting.cut_result import REPEATS, SubstringResult
from pilekit.cutting.passages import frequent_passages
from pilekit.cutting.repeats import find_runs, repeated_anchors, scan
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.dedup.match.population import MAX_DOCUMENTS
from pilekit.engine import Advance, Ray
from pilekit.errors import PilekitError
from pilekit.progress import Report
from pilekit.shards.read.reader import OnError

KIND = "substrings"
PASSAGES, PASSAGE_CHARACTERS = 10, 200
"""The passages in the summary, and the characters of each."""

_SCRATCH_BYTES = 8
"""About the bytes on disk per stored byte: 1.5 per byte of text in windows, and as much to sort them."""


def substrings_corpus(
    corpus: Corpus | Source | None = None,
    out: str | Path = "substrings",
    *,
    min_bytes: int = 100,
    dedup: str | Path | None = None,
    held_out: HeldOutShards = "leave-out",
    subsets: str | Sequence[str] | None = None,
    only: bool = False,
    write: bool = True,
    memory: int = 4 << 30,
    jobs: int | None = None,
    on_error: OnError = "raise",
    manifest: Described = None,
    advance: Report | None = None,
    engine: Ray | None = None,
) -> SubstringResult:
    """Cut passages of earlier documents out of each document, and write the result into the folder `out`.

    corpus     a `Corpus`, or a path, glob or URL, or several of them
    min_bytes  the shortest run of UTF-8 bytes that counts
    dedup      folder of a finished dedup; documents that it removed are left out
    held_out   "leave-out": held-out shards beside others are not read; "protect": nothing is cut out of them, and the
               others lose what they have
    subsets    compare the documents of these subsets with each other, in any spelling the manifest knows; None: all
    only       leave out the documents of other subsets, rather than pass them through
    write      write the clean shards; else only the table and the summary
    memory     bytes for sorting, at least 64 MB; the processes' own memory is extra
    jobs       number of shards at a time, each in its own process; None: the usable CPUs
    on_error   "raise": a bad line is a `PilekitError`; "skip": it is counted and listed
    manifest   describes the corpus at a path, as for `Corpus`
    advance    receives the progress of each step
    engine     a cluster instead of local processes; this node sorts

    A killed run is resumed; a repeated finished run returns at once.
    """
    if dedup == "":
        raise PilekitError("dedup is empty; name a folder")
    corpus, protected = Corpus.of(corpus, manifest).comparable(held_out)
    removed = None if dedup is None else Path(dedup)
    parameters = {"min_bytes": min_bytes, "dedup": None if removed is None else DropDuplicates(removed).identity}
    find = partial(_find, length=min_bytes, memory=memory)
    options: dict[str, Any] = {"subsets": subsets, "only": only, "write": write, "jobs": jobs, "on_error": on_error}
    options |= {"advance": advance, "engine": engine, "find": find, "pieces": without, "memory": memory}
    options |= {"protected": protected, "dedup": removed, "parameters": parameters}
    options |= {"table": REPEATS, "counts": (*COUNTS, "bytes_removed")}
    return SubstringResult(*cut_corpus(corpus, out, kind=KIND, **options))


def _find(job: CutJob, length: int, memory: int) -> tuple[dict[str, Any], list[Path]]:
    """Find all repeats, and write the table."""
    folder, scratch, own = job.output.folder, job.scratch, job.own_scratch
    check_free_disk(folder, _SCRATCH_BYTES * job.stored - bytes_below(folder), "comparing")
    read = job.each_shard("reading", "anchors", scan, length=length)
    bases = np.cumsum([0, *(of["lines"] for of in read.values())])
    if bases[-1] >= MAX_DOCUMENTS:
        raise PilekitError(f"{bases[-1]:,} documents are more than can be compared at once; take fewer shards")
    of_shard, filter, parts = dict(zip(read, bases.tolist(), strict=False)), scratch / "filter.npy", scratch / "runs"
    with write_atomically(filter) as file:
        np.save(file, repeated_anchors(*_sorting(job, "sorting", "anchors"), bases, own, memory))
    job.each_shard("comparing", "windows", scan, [filter], filter=filter, bases=of_shard, length=length)
    protected = job.selection.protected
    runs = find_runs(*_sorting(job, "sorting again", "windows"), bases, parts, own, length, memory, len(protected))
    located: dict[str, Any] = {"parts": parts, "starts": runs, "bases": of_shard, "length": length}
    job.each_shard("locating", "cuts", locate_cuts, [parts], **located)
    table = join_tables(folder / REPEATS, ROWS, job.files("cuts"))
    limits: dict[str, Any] = {"most": PASSAGES, "rows": 1, "scratch": own, "memory": memory}
    most = frequent_passages(table, job.paths, job.corpus.manifest, **limits)
    passages = [{"count": one.count, "text": one.text[:PASSAGE_CHARACTERS]} for one in most]
    summary: dict[str, Any] = {"passages": passages}
    if protected:
        documents = sum(sum(read[name]["read"].values()) for name in protected)
        spans = pyarrow.dataset.dataset(table).count_rows(filter=pc.field("first_shard").isin(protected))
        summary["held_out"] = {"shards": protected, "documents": documents, "spans": spans}
    return {"read": read, "summary": summary}, [table]


def _sorting(job: CutJob, step: str, name: str) -> tuple[list[Path], Advance]:
    """The files of a step, and the progress of sorting them."""
    files = job.files(name)
    return files, job.progress(step, sum(file.stat().st_size for file in files))
