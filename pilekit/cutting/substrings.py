"""`substrings_corpus`: a corpus without passages of earlier documents, with the earliest place of each.

    anchors (each shard) -> filter -> windows (each shard) -> runs -> cuts (each shard) -> repeats.parquet
        -> cut (each shard) -> summary.json

`repeats.parquet`, `clean/` and `summary.json` stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.folders import bytes_below, check_free_disk
from pilekit.artifacts.parquet_rows import join_tables
from pilekit.artifacts.sort import MAX_DOCUMENTS
from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.corpus import Corpus, Described, HeldOutShards, Source
from pilekit.cutting.job import COUNTS, CutCommand, CutJob, cut_corpus
from pilekit.cutting.passages import frequent_passages
from pilekit.cutting.repeat_cuts import ROWS, LocateCuts, Scan, find_runs, repeated_anchors, without
from pilekit.cutting.result import REPEATS, SubstringResult
from pilekit.cutting.shards import CutScope
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.work import SortWork, takes
from pilekit.workers import Advance

KIND = "substrings"
PASSAGES, PASSAGE_CHARACTERS = 10, 200
"""The passages in the summary, and the characters of each."""

_SCRATCH_BYTES = 8
"""About the bytes on disk per stored byte: 1.5 per byte of text in windows, and as much to sort them."""


@takes(SortWork)
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
    manifest: Described = None,
    **work: Unpack[SortWork],
) -> SubstringResult:
    """Cut passages of earlier documents out of each document, and write the result into the folder `out`.

    corpus     a `Corpus`, or a path, glob or URL, or several of them
    min_bytes  the shortest run of UTF-8 bytes that counts
    dedup      folder of a finished dedup; documents that it removed are left out
    held_out   "leave-out": held-out shards among others are not read; "protect": nothing is cut out of them, and the
               others lose what they have
    subsets    compare the documents of these subsets with each other, in any spelling the manifest knows; None: all
    only       leave out the documents of other subsets, rather than pass them through
    write      write the clean shards; else only the table and the summary
    manifest   describes the corpus at a path, as for `Corpus`
    work       on_error, jobs, advance, memory: see `SortWork`
    cluster    a cluster instead of local processes; sorting stays on this node

    A killed run is resumed; a repeated finished run returns at once.
    """
    if dedup == "":
        raise PilekitError("dedup is empty; name a folder")
    corpus, protected = Corpus.of(corpus, manifest).comparable(held_out)
    removed = None if dedup is None else Path(dedup)
    parameters = {"min_bytes": min_bytes, "dedup": None if removed is None else DropDuplicates(removed).identity}
    job, find = CorpusJob.of_steps(corpus, **work), partial(_find, length=min_bytes)
    command = CutCommand(KIND, REPEATS, find, without, write, (*COUNTS, "bytes_removed"))
    scope = CutScope.for_job(job, subsets, only, removed, protected)
    return SubstringResult(*cut_corpus(job, out, command, parameters, scope))


def _find(job: CutJob, length: int) -> tuple[dict[str, Any], list[Path]]:
    """Find all repeats, and write the table."""
    folder, scratch = job.folder, job.scratch
    sort_scratch = Scratch(job.folder_job.own_scratch(scratch), job.folder_job.sort_bytes)
    check_free_disk(folder, _SCRATCH_BYTES * job.stored - bytes_below(folder), "comparing")
    read = job.process_step("reading", "anchors", Scan(length, job.scope))
    bases = np.cumsum([0, *(counts["lines"] for counts in read.values())])
    if bases[-1] >= MAX_DOCUMENTS:
        raise PilekitError(f"{bases[-1]:,} documents are more than can be compared at once; take fewer shards")
    first_names, filter, parts = dict(zip(read, bases.tolist(), strict=False)), scratch / "filter.npy", scratch / "runs"
    with write_atomically(filter) as file:
        np.save(file, repeated_anchors(*_sorting(job, "sorting", "anchors"), bases, sort_scratch))
    job.process_step("comparing", "windows", Scan(length, job.scope, first_names, filter), [filter])
    protected = job.scope.protected
    starts = find_runs(*_sorting(job, "sorting again", "windows"), bases, parts, sort_scratch, len(protected))
    job.process_step("locating", "cuts", LocateCuts(parts, starts, first_names, length, job.scope), [parts])
    table = join_tables(folder / REPEATS, ROWS, job.files("cuts"))
    most = frequent_passages(table, job.folder_job.corpus, most=PASSAGES, rows=1, scratch=sort_scratch)
    passages = [{"count": passage.count, "text": passage.text[:PASSAGE_CHARACTERS]} for passage in most]
    summary: dict[str, Any] = {"passages": passages}
    if protected:
        documents = sum(sum(read[name]["read"].values()) for name in protected)
        spans = pyarrow.dataset.dataset(table).count_rows(filter=pc.field("first_shard").isin(protected))
        summary["held_out"] = {"shards": protected, "documents": documents, "spans": spans}
    return {"read": read, "summary": summary}, [table]


def _sorting(job: CutJob, step: str, name: str) -> tuple[list[Path], Advance]:
    """The files of a step, and the progress of sorting them."""
    files = job.files(name)
    return files, job.folder_job.progress(step, sum(file.stat().st_size for file in files))
