"""`cut_substrings`: a corpus without the passages that an earlier document has, with the earliest place of each.

    anchors (each shard) -> filter -> windows (each shard) -> runs -> cut (each shard) -> repeats.parquet, summary.json

Each step's files are complete or not there; after a kill, the next run makes the rest. `repeats.parquet`, `clean/` and
`summary.json` stay; `scratch/` is removed. The result depends on the shards and the parameters alone.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.free_disk import check_free_disk
from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.corpus import Corpus, Manifest, Shard, subsets_or_all
from pilekit.corpus.shard import STANDARD_INPUT, is_url
from pilekit.cutting.cut_repeats import ROWS, locate_cuts, without
from pilekit.cutting.cut_shards import BYTES_REMOVED, COUNTS, cut_shard, summed
from pilekit.cutting.decontaminate import CLEAN, SCRATCH
from pilekit.cutting.decontamination import REPEATS, SUMMARY, Substrings
from pilekit.cutting.passages import frequent_passages
from pilekit.cutting.repeats import Selection, find_runs, repeated_anchors, scan
from pilekit.dedup.deduplicated import Deduplicated
from pilekit.dedup.match.population import MAX_DOCUMENTS
from pilekit.engine import Advance, map_shards
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.shard_job import all_skipped, check_names, stem
from pilekit.progress import Report
from pilekit.shards.fingerprint import Fingerprint, Inputs, inputs_for
from pilekit.shards.processes import decompress_ahead, processes_for
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError

KIND = "substrings"
PASSAGES, PASSAGE_CHARACTERS = 10, 200
"""The passages in the summary, and the characters of each."""

_CUT, _FOUND, _DONE = "/cut/", "/found", "/summary"
"""Names of notes, the first before a shard's name; no shard's name begins with a slash."""

_SCRATCH_BYTES = 8
"""About what is on disk for a stored byte: 1.5 bytes for a byte of text in windows, and as much to sort them."""


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
) -> Substrings:
    """Cut out of each document what an earlier document has, and write the result into the folder `out`.

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

    A killed run is resumed; a repeated finished run returns at once.
    """
    try:
        given = (min_bytes, memory, jobs, on_error)
        msgspec.convert(dict(zip(_Options.__struct_fields__, given, strict=True)), _Options)
    except msgspec.ValidationError as error:
        raise PilekitError(f"cut_substrings: {visible(str(error), 200)}") from None
    if only and subsets is None:
        raise PilekitError("`only` leaves out the documents of other subsets; name subsets too")
    if "" in (out, dedup):
        raise PilekitError(f"{'out' if out == '' else 'dedup'} is empty; name a folder")
    corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
    if any(shard.path == STANDARD_INPUT for shard in corpus.shards):
        raise PilekitError("standard input (-) cannot be compared, as it is read three times; save it to a file first")
    if write:
        check_names(corpus.shards)
    chosen = subsets_or_all([subsets] if isinstance(subsets, str) else subsets, corpus.manifest)
    compared = None if chosen is None else sorted(chosen)
    removed, inputs = None if dedup is None else Path(dedup), inputs_for(out, corpus.shards)
    parameters = {
        "min_bytes": min_bytes,
        "dedup": None if removed is None else Deduplicated(removed).identity,
        "subsets": compared,
        "only": only,
        "write": write,
        "text_field": corpus.manifest.text_field,
        "label_path": corpus.manifest.label_path,
    }
    selection = Selection(compared, only, removed, corpus.manifest, on_error)
    for shard in corpus.shards:
        mask = selection.mask(shard)
        if mask is not None and not mask.fits(Fingerprint(*inputs.fingerprints[shard.name])):
            raise PilekitError(
                f"{visible(shard.path)}: is not the shard that was deduplicated in {visible(str(dedup))}"
            )
    with output_folder(
        out, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    ) as output:
        if not output.finished:
            _Run(corpus, output, min_bytes, write, selection, inputs, memory, jobs, advance).run()
        skipped = all_skipped(output.results()[_FOUND]["read"], corpus.shards)
        if on_error == "raise" and skipped.count:  # An earlier run skipped lines that are an error now.
            raise bad_line_error(skipped.examples[0])
        return Substrings(output.folder, msgspec.json.decode((output.folder / SUMMARY).read_bytes()), skipped)


@dataclass(frozen=True)
class _Run:
    """The steps of a run, in their order."""

    corpus: Corpus
    output: Output
    length: int
    write: bool
    selection: Selection
    inputs: Inputs
    memory: int
    jobs: int | None
    advance: Report | None

    def run(self) -> None:
        """Every step that no earlier run has finished."""
        scratch = self.output.folder / SCRATCH
        if self.output.result(_DONE) is None:
            found = self.output.result(_FOUND) or self._find(scratch)
            shutil.rmtree(scratch, ignore_errors=True)
            self._cut(found)
        shutil.rmtree(scratch, ignore_errors=True)

    def _find(self, scratch: Path) -> dict[str, Any]:
        """Find all repeats, and write the table; note what was read."""
        stored = sum(size for size, _ in self.inputs.fingerprints.values())
        there = sum(path.stat().st_size for path in self.output.folder.rglob("*") if path.is_file())
        check_free_disk(self.output.folder, _SCRATCH_BYTES * stored - there, "comparing")
        scanning = functools.partial(scan, length=self.length, selection=self.selection)
        read, anchors = self._rows("reading", scanning, "anchors")
        bases, names = np.cumsum([0, *(of["lines"] for of in read)]), [shard.name for shard in self.corpus.shards]
        if bases[-1] >= MAX_DOCUMENTS:
            raise PilekitError(f"{bases[-1]:,} documents are more than can be compared at once; take fewer shards")
        of_shard = dict(zip(names, bases.tolist(), strict=False))
        filter, sorting = scratch / "filter.npy", self._progress("sorting", anchors)
        np.save(filter, repeated_anchors(anchors, bases, scratch, self.memory, sorting))
        scanning = functools.partial(scanning, filter=filter, bases=of_shard)
        _, windows = self._rows("comparing", scanning, "windows")
        runs, sorting = scratch / "runs", self._progress("sorting again", windows)
        starts = find_runs(windows, bases, runs, self.length, self.memory, sorting)
        located: dict[str, Any] = {"runs": runs, "starts": starts, "bases": of_shard, "manifest": self.corpus.manifest}
        locating = functools.partial(locate_cuts, **located)
        _, parts = self._rows("locating", locating, "cuts")
        table = self.output.folder / REPEATS
        with write_atomically(table) as file, pq.ParquetWriter(file, ROWS, compression="zstd") as writer:
            for path in parts:
                with pq.ParquetFile(path) as part:
                    for batch in part.iter_batches():
                        writer.write_batch(batch)
        urls = {shard.name: shard.path for shard in self.corpus.shards}
        paths = {name: path if is_url(path) else str(Path(path).absolute()) for name, path in urls.items()}
        limits: dict[str, Any] = {"most": PASSAGES, "rows": 1, "scratch": scratch, "memory": self.memory}
        most = frequent_passages(table, paths, self.corpus.manifest, **limits)
        passages = [{"count": one.count, "text": one.text[:PASSAGE_CHARACTERS]} for one in most]
        found = {"read": dict(zip(names, read, strict=True)), "passages": passages, "paths": paths}
        self.output.note(_FOUND, found, table)
        return found

    def _cut(self, found: dict[str, Any]) -> None:
        """Cut all shards, and write the summary."""
        of, read = self.selection, found["read"]
        options: dict[str, Any] = {"subsets": of.subsets if of.only else None, "on_error": of.on_error}
        options |= {"manifest": of.manifest, "mask_of": of.mask, "pieces": without, "counted": read}
        work = functools.partial(_note_cut, table=self.output.folder / REPEATS, write=self.write, **options)
        done = [one["subsets"] for one in self._shards("cutting", work, _CUT)]
        summary = {**summed(done, list(read.values()), (*COUNTS, BYTES_REMOVED)), "passages": found["passages"]}
        with write_atomically(self.output.folder / SUMMARY) as file:
            file.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        self.output.note(_DONE, {}, self.output.folder / SUMMARY)

    def _rows(self, step: str, work: Callable[..., Any], name: str) -> tuple[list[dict[str, Any]], list[Path]]:
        """Do work that writes a file in `scratch/` for each shard; its results, and the files."""
        files = {shard.name: self.output.path(f"{SCRATCH}/{name}/{shard.name}", "") for shard in self.corpus.shards}
        noting = functools.partial(_note_rows, work=work, files=files, notes=f"/{name}/")
        return self._shards(step, noting, f"/{name}/"), list(files.values())

    def _shards(self, step: str, work: Callable[..., None], notes: str) -> list[dict[str, Any]]:
        """Do the work on the shards that have no note yet; the notes' results."""
        waiting = [shard for shard in self.corpus.shards if self.output.result(notes + shard.name) is None]
        progress = self._progress(step, [Path(shard.path) for shard in waiting if not is_url(shard.path)])
        processes = processes_for(waiting, self.jobs)
        work = functools.partial(work, output=self.output, inputs=self.inputs, ahead=decompress_ahead(processes))
        map_shards(work, waiting, jobs=processes, on_progress=progress)
        results = self.output.results()
        return [results[notes + shard.name] for shard in self.corpus.shards]

    def _progress(self, step: str, files: Sequence[Path]) -> Advance:
        advance, total = self.advance, sum(file.stat().st_size for file in files)
        return (lambda amount: None) if advance is None else lambda amount: advance(step, amount, total)


def _note_rows(
    shard: Shard,
    advance: Advance,
    *,
    work: Callable[..., dict[str, Any]],
    output: Output,
    inputs: Inputs,
    notes: str,
    files: dict[str, Path],
    **options: Any,
) -> None:
    result = work(shard, advance, path=files[shard.name], **options)
    inputs.check(shard)
    output.note(notes + shard.name, result, files[shard.name])


def _note_cut(
    shard: Shard, advance: Advance, *, output: Output, write: bool, counted: dict[str, Any], **options: Any
) -> None:
    path = output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst") if write else None
    counts, files = cut_shard(shard, advance, path=path, before=counted[shard.name]["read"], **options)
    output.note(_CUT + shard.name, {"subsets": counts}, *files)
