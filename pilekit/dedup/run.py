"""`dedup_corpus`: a corpus without copies, with a proof for every removed document.

    sketch (each shard) -> exact copies -> candidates -> their shingle sets (each shard) -> resolve
        -> removed.parquet and masks -> clean shards (each) -> summary.json

Sketches, shingle sets, clean shards and the decisions are files that are complete or absent. After a kill, the next
run reuses the complete files and makes the rest. `sketches/`, `masks/`, `removed.parquet`, `summary.json` and `clean/`
stay; `scratch/` is removed. The result depends on the shards and the parameters in the folder's header alone, not on
the number of processes, the memory, or the order in which shards are given.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Unpack

import msgspec
import numpy as np

from pilekit.artifacts.atomic_write import write_json
from pilekit.artifacts.checked import checked
from pilekit.artifacts.folders import bytes_below, check_free_disk
from pilekit.artifacts.job_folder import Output
from pilekit.artifacts.sort.scratch_files import Scratch, scratch_array
from pilekit.corpus import Corpus, Described, HeldOutShards, Manifest, Shard, Source, resolve_subsets
from pilekit.corpus.job_shards import CLEAN
from pilekit.corpus.shard import STANDARD_INPUT, check_stems, stem
from pilekit.dedup.document_table import DocumentTable, Keep, ids_of
from pilekit.dedup.matching import find_candidates, find_exact
from pilekit.dedup.on_cluster import ClusterSteps
from pilekit.dedup.output.clean_shards import clean_shard, mask_shard
from pilekit.dedup.output.removed_format import REMOVALS
from pilekit.dedup.output.removed_table import DecisionResult, Decisions, DecisionSettings, decide
from pilekit.dedup.output.summary import summarize
from pilekit.dedup.previous_runs import DONE, KIND, MASKS, RECORDS, SKETCHES, EarlierRun, earlier_runs
from pilekit.dedup.result import REMOVED, SUMMARY, DedupResult
from pilekit.dedup.scratch_space import bytes_needed, set_bytes
from pilekit.dedup.shingle_store import store_shingles
from pilekit.dedup.sketch.bands import Bands, choose_bands
from pilekit.dedup.sketch.minhash import SEED
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.dedup.sketch.sketch_shard import SketchSettings, is_fresh, sketch_shard
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob, corpus_folder
from pilekit.shards.index.document_rows import load_scan
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.read_errors import LISTED_BAD_LINES, BadLine
from pilekit.shards.read.reader import OnError
from pilekit.shards.work import SortWork, takes
from pilekit.workers import Advance

SCRATCH = "scratch"

_KEY_BYTES, _ROW_BYTES = 8, 24


class _DedupOptions(msgspec.Struct):
    """The arguments of `dedup_corpus` that have a range."""

    threshold: Annotated[float, msgspec.Meta(gt=0, le=1)]
    only: bool
    ngram: Annotated[int, msgspec.Meta(ge=1, le=100)]
    num_perm: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    keep: Keep
    write: bool
    memory: Annotated[int, msgspec.Meta(ge=64 * 10**6)] | None
    jobs: Annotated[int, msgspec.Meta(ge=1)] | None
    on_error: OnError


@takes(SortWork)
def dedup_corpus(
    corpus: Corpus | Source | None = None,
    out: str | Path = "dedup",
    *,
    subsets: str | Sequence[str] | None = None,
    only: bool = False,
    threshold: float = 0.8,
    ngram: int = 5,
    num_perm: int = 128,
    keep: Keep = "longest",
    held_out: HeldOutShards = "leave-out",
    against: str | Path | None = None,
    write: bool = True,
    manifest: Described = None,
    **work: Unpack[SortWork],
) -> DedupResult:
    """Remove exact copies and near-duplicates from a corpus, and write the result into the folder `out`.

    corpus      a `Corpus`, or a path, glob or URL, or several of them
    held_out    "leave-out": held-out shards among others are not read; "protect": nothing is removed from them, and
                the others lose what they have
    subsets     compare the documents of these subsets with each other, in any spelling the manifest knows; None: all
    only        leave out the documents of other subsets, rather than pass them through
    threshold   least Jaccard similarity of the word n-grams of near-duplicates
    ngram       words in an n-gram
    num_perm    about this many MinHash permutations, as whole bands that give a recall of 0.99 at the threshold
    keep        which of similar documents stays: the "longest" (of equally long ones the first), or the "first"
    against     folder of an earlier run; its documents come before all of these, and documents of the run that it was
                made against come first
    write       write the clean shards; else only masks and records
    memory      bytes for sorting and comparing, at least 64 MB; some bits for each document and the processes' own
                memory are extra
    jobs        number of shards at a time, each in its own process; None: one for every two CPUs
    manifest    describes the corpus at a path, as for `Corpus`
    cluster     a cluster instead of local processes; `memory` is then that of each node
    work        on_error, advance: see `SortWork`

    A killed run is resumed; a repeated finished run returns at once. `PilekitError` if the folder was made from other
    shards or with other parameters: it names the difference. No clean shard has a skipped line.
    """
    memory, jobs, on_error = work.get("memory"), work.get("jobs"), work.get("on_error", "raise")
    options = (threshold, only, ngram, num_perm, keep, write, memory, jobs, on_error)
    checked(dict(zip(_DedupOptions.__struct_fields__, options, strict=True)), _DedupOptions)
    if subsets is not None and not subsets:
        raise PilekitError("subsets is empty, so no document is compared; name some, or give None for all")
    if only and subsets is None:
        raise PilekitError("`only` leaves out the documents of other subsets; name subsets too")
    if "" in (out, against):
        raise PilekitError(f"{'out' if out == '' else 'against'} is empty; name a folder")
    corpus, protected = Corpus.of(corpus, manifest).comparable(held_out)
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        raise PilekitError("standard input (-) cannot be deduplicated, as it is read twice; save it to a file first")
    if write:
        check_stems(corpus.shards)
    if subsets is not None:
        subsets = resolve_subsets(subsets, manifest=corpus.manifest)
    bands = choose_bands(threshold, num_perm)
    parameters = {
        "threshold": float(threshold),
        "ngram": ngram,
        "num_perm": bands.num_perm,
        "seed": SEED,
        "bands": bands.bands,
        "rows": bands.rows,
        "keep": keep,
        "subsets": None if subsets is None else sorted(subsets),
        "only": only,
        "write": write,
        **corpus.manifest.record,
    }
    if protected:
        parameters["held_out"] = [*protected]
    before = [] if against is None else earlier_runs(against, parameters)
    parameters["against"] = before[-1].identity if before else None
    # The threads of a process keep two CPUs busy.
    corpus_job = CorpusJob.of_steps(corpus, cpus_per_job=2, **work)
    with corpus_folder(corpus_job, out, kind=KIND, parameters=parameters, tables={REMOVED: REMOVALS}) as job:
        output = job.output
        records = output.result(RECORDS)
        if on_error == "raise" and records is not None and records["bad_lines"]:
            # An earlier run skipped lines that are an error now.
            place, line, reason = records["bad_lines"][0]
            raise bad_line_error(BadLine(corpus.shards[place].path, line, reason))
        if not output.finished:
            run = _DedupRun(job, bands, parameters, before)
            if records is None:
                needed = bytes_needed(run.stored(), bands.bands, clean=write) - bytes_below(output.folder)
                check_free_disk(output.folder, needed, "deduplicating")
                sketches = run.sketch()
                labels = {label for sketch in sketches for label in sketch.subset_names}
                forget_sketches = functools.partial(shutil.rmtree, run.folder / SKETCHES, ignore_errors=True)
                check_label(corpus, labels, subsets, discard=forget_sketches)
                records = run.record(sketches, *run.decide(sketches))
            run.write_clean()
            run.finish(records["summary"])
        return DedupResult.from_output(output, corpus)


@dataclass(frozen=True)
class _DedupRun:
    """The steps of a run, in their order."""

    job: FolderJob
    bands: Bands
    parameters: dict[str, Any]
    before: Sequence[EarlierRun]

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.job.output.folder

    def sketch(self) -> list[ShardSketch]:
        """A sketch of every shard. Scratch files that were made from other sketches are removed."""
        folder, job = self.folder / SKETCHES, self.job
        if not all(is_fresh(folder / f"{shard.name}{SKETCH_SUFFIX}", shard) for shard in job.shards):
            shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)
        ngram, subsets = self.parameters["ngram"], self.parameters["subsets"]
        settings = SketchSettings(self.bands, ngram, subsets, job.corpus.manifest, job.on_error)
        sketch = functools.partial(sketch_shard, settings=settings, folder=folder, inputs=job.inputs)
        sketches = list(job.step("sketching", self.stored()).each(sketch, job.shards))
        await_files(Path(sketch.path) for sketch in sketches)
        return sketches

    def decide(self, sketches: Sequence[ShardSketch]) -> tuple[DocumentTable, DecisionResult]:
        """Find out which documents are removed, and why, and write `removed.parquet`."""
        job, scratch, cluster = self.job, self.folder / SCRATCH, self.job.cluster
        scratch.mkdir(parents=True, exist_ok=True)
        task_scratch = Scratch(job.own_scratch(scratch), job.sort_bytes)
        keep, protected = self.parameters["keep"], len(self.parameters.get("held_out", ()))
        make = functools.partial(_document_table, sketches=sketches, keep=keep, before=self.before, protected=protected)
        document_table = make(task_scratch.folder)
        shards = [*(shard for run in self.before for shard in run.shards), *job.shards]

        steps = None if cluster is None else ClusterSteps(job, make, scratch / "matched", cluster)
        # A cluster's task has decisions of its own.
        decisions = Decisions(document_table.documents if steps is None else 0, task_scratch.folder)
        copies = scratch_array(task_scratch.folder, np.bool_, document_table.documents)
        for pairs in find_exact(document_table, task_scratch) if steps is None else steps.find_exact():
            if steps is None:
                decisions.add_copies(pairs)
            copies[ids_of(pairs[1])] = True

        bands = self.bands.bands
        keys = job.progress("matching", 2 * _KEY_BYTES * document_table.documents * bands, _KEY_BYTES)
        if steps is None:
            candidates = find_candidates(
                document_table, range(bands), copies, task_scratch, jobs=job.jobs, advance=keys
            )
        else:
            candidates = steps.find_candidates(bands, copies, keys)
        with candidates.rows:
            text_bytes = int(np.sum(document_table.rows["text_bytes"], where=candidates.flagged, dtype=np.int64))
            check_free_disk(scratch, set_bytes(text_bytes, document_table.documents), "comparing")
            reading = job.step("reading candidates", sum(sketch.header.size for sketch in document_table.sketches))
            store_shingles(reading, document_table, shards, candidates.flagged, scratch / "sets")
            resolved = job.progress("comparing", _ROW_BYTES * candidates.count, _ROW_BYTES)
            subsets = job.corpus.manifest.subsets
            settings = DecisionSettings(
                sets=scratch / "sets",
                threshold=self.parameters["threshold"],
                path=self.folder / REMOVED,
                header={"parameters": self.parameters, "inputs": job.inputs.fingerprints},
                repeated_labels={subset.name for subset in subsets if (subset.epochs or 0) > 1},
                repeated_shards={shard.name for shard in job.shards if shard.split in ("train", None)},
            )
            decide_all = functools.partial(decide, settings=settings)
            if steps is not None:
                return document_table, steps.decide(decide_all, self.folder / REMOVED, resolved)
            return document_table, decide_all(document_table, decisions, candidates, task_scratch, resolved)

    def record(
        self, sketches: Sequence[ShardSketch], document_table: DocumentTable, decided: DecisionResult
    ) -> dict[str, Any]:
        """Write the masks, then check and note the summary."""
        job, flags = self.job, decided.flags
        manifest, only = job.corpus.manifest, self.parameters["only"]
        masks = [_mask_file(job.output, shard) for shard in job.shards]
        ids = pairwise(document_table.base[len(document_table.sketches) - len(sketches) :].tolist())
        items = list(zip(job.shards, sketches, masks, ids, strict=True))
        mask = functools.partial(mask_shard, labels=document_table.labels, flags=flags, only=only, manifest=manifest)
        kept_counts = sum(job.each(mask, items), np.zeros((2, len(document_table.labels)), np.int64))
        await_files(masks)
        summary = summarize(sketches, document_table.labels, kept_counts, decided, self.bands, self.parameters)
        bad_lines = [[place, *example] for place, sketch in enumerate(sketches) for example in sketch.header.examples]
        records = {"summary": summary, "bad_lines": bad_lines[:LISTED_BAD_LINES]}
        job.output.forget()  # Clean shards of earlier masks, before a shard was changed, are written again.
        job.output.note(RECORDS, records, self.folder / REMOVED, *masks)
        return records

    def write_clean(self) -> None:
        """Write the clean shards, if requested, and note the path of each shard."""
        shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)
        write, job = self.parameters["write"], self.job
        if write:
            job = job.step("writing", self.stored())
            load_scan(job, job.shards)
        else:
            job = replace(job, jobs=1, cluster=None)
        job.process_unfinished(functools.partial(_finish_shard, write=write, manifest=job.corpus.manifest))

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, and note the folder of the earlier run."""
        against = str(self.before[-1].folder.absolute()) if self.before else None
        self.job.output.note(DONE, {"against": against}, write_json(self.folder / SUMMARY, summary))

    def stored(self) -> int:
        """Stored bytes of all shards."""
        return sum(size for size, _ in self.job.inputs.fingerprints.values())


def _document_table(
    folder: Path, *, sketches: Sequence[ShardSketch], keep: Keep, before: Sequence[EarlierRun], protected: int
) -> DocumentTable:
    earlier = (pair for run in before for pair in zip(run.sketches(), run.masks(), strict=True))
    return DocumentTable(sketches, keep, folder, earlier, protected)


def _finish_shard(
    shard: Shard, advance: Advance, *, output: Output, inputs: Inputs, write: bool, share: Share, manifest: Manifest
) -> None:
    files: list[Path] = []
    if write:
        path, mask = output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst"), _mask_file(output, shard)
        files = clean_shard(shard, advance, path=path, mask=mask, inputs=inputs, share=share, manifest=manifest)
    output.note(shard.name, {"path": shard.absolute_path}, *files)


def _mask_file(output: Output, shard: Shard) -> Path:
    return output.path(f"{MASKS}/{shard.name}", MASK_SUFFIX)
