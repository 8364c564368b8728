"""`assemble_corpus`: a corpus of shards and a hold-out, made from the sources that a manifest names.

    sources -> rows -> plan                      each source read once, several at a time; then sorting on disk
            -> lines, spilled by place           each source read again
            -> train/00.jsonl.zst ... val test   each shard merged from all sources, several at a time

Each step is noted in the folder of the job, so a killed run resumes, and ends with the same bytes. Rows depend on the
sources alone: until a line is spilled, the manifest's other settings may change.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import xxhash

from pilekit.artifacts.atomic_write import write_atomically, write_json
from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.folders import bytes_below, check_free_disk
from pilekit.artifacts.header import read_header, write_header
from pilekit.artifacts.job_folder import LOCK_FILE, Output, output_folder
from pilekit.assemble.corpus_plan import epochs_of, make_plan
from pilekit.assemble.find_sources import Source, find_sources, inputs_of
from pilekit.assemble.read_source import SCRATCH, Job, count_source, read_rows
from pilekit.assemble.write import LINES, SPILLED, outputs, spill_source, write_output
from pilekit.corpus import Corpus, Shard, load_manifest
from pilekit.display.table_result import TableResult
from pilekit.documents import check_none_lost
from pilekit.errors import PilekitError, counted
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob
from pilekit.shards.read.read_errors import LISTED_BAD_LINES, SkippedLines
from pilekit.shards.work import SortWork, takes

if TYPE_CHECKING:
    from pilekit.display.fitted_table import FittedTable

KIND = "assembled corpus"
"""The kind in the header of the folder."""

SUMMARY, DONE = "summary.json", "/done"

SPILLED_PER_TEXT, STORED_PER_TEXT = 1.1, 0.5
"""Bytes on disk for a byte of text: as JSON, and compressed."""

PARTS = ("empty", "removed", "left_out", "val", "test", "train_documents")
"""The fates of the documents read; their counts add up to `read`."""

COUNTS = ("read", "empty", "skipped", *PARTS[1:], "train")

_Row = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, repr=False)
class AssembledCorpus(TableResult):
    """The result of `assemble_corpus`, or its plan.

    folder    the folder of the corpus
    summary   the content of summary.json: counts of all documents and of each subset
    planned   share of each subset in the bytes of train, if nothing were held out or removed
    skipped   the bad lines and files that were skipped
    written   whether the corpus was written; False for a plan
    """

    folder: Path
    summary: dict[str, Any]
    planned: dict[str, float]
    skipped: SkippedLines
    written: bool

    def sum(self) -> str:
        """The documents read and their fates, in one line."""
        parts = " + ".join(f"{self.summary[name]:,} {name.replace('_', ' ')}" for name in PARTS if self.summary[name])
        return f"{self.summary['read']:,} read = {parts}"

    def table(self) -> FittedTable[tuple[str, dict[str, Any]]]:
        """A row per subset in the manifest's order, and the total."""
        from pilekit.display.fitted_table import SHORTEN, Column, FittedTable, percentage, rounded_bytes, rounded_count

        subsets = self.summary["subsets"]
        size = sum(row["bytes"] for row in subsets.values())
        reached = {name: row["bytes"] / size if size else 0.0 for name, row in subsets.items()}

        def number(name: str) -> Column[_Row]:
            title = name.replace("_", " ").capitalize()
            return Column(
                title, lambda row: f"{row[1][name]:,}", Column(title, lambda row: rounded_count(row[1][name]))
            )

        def share(title: str, shares: dict[str, float]) -> Column[_Row]:
            return Column(title, lambda row: "100" if row[0] not in shares else percentage(shares[row[0]]))

        names = [name for name in ("empty", "skipped", "removed", "left_out") if self.summary[name]]
        columns: list[Column[_Row]] = [
            Column("Subset", lambda row: row[0]),
            Column("Epochs", lambda row: f"{row[1]['epochs']:g}" if "epochs" in row[1] else ""),
            *map(number, ("read", *names, "val", "test", "train")),
            Column("Text", lambda row: rounded_bytes(row[1]["bytes"])),
            share("Planned %", self.planned),
            share("Reached %", reached),
        ]
        total = ("Total", {**self.summary, "bytes": size})
        return FittedTable([*subsets.items()], columns, [total], (SHORTEN, "Empty", "Left out", "Text"))


class _Planned(Exception):
    """Only the plan was requested, and it is made; the folder is not finished."""


@takes(SortWork)
def assemble_corpus(
    manifest: str | Path,
    out: str | Path,
    *,
    plan: bool = False,
    **work: Unpack[SortWork],
) -> AssembledCorpus:
    """Make a corpus from the sources of a manifest: train shards, `val` and `test`, with the epochs it asks for.

    manifest   path of a TOML file with `sources` in its subsets
    out        new folder for the corpus; a killed run of the same job is resumed
    plan       stop after the first pass: all counts, and no line written
    memory     bytes for sorting and for lines, at least 64 MB; the hashes of held-out texts and the processes' own
               memory are extra
    on_error   "raise": a line or file that is no document is a `PilekitError`; "skip": it is counted and listed
    jobs       sources or shards at a time, each in its own process; None: the usable CPUs, or fewer for little text
    cluster    a cluster instead of local processes; `memory` is then that of each node
    work       advance: see `SortWork`

    The bytes are the same for any jobs, memory and order of sources. Raises `PilekitError` for a source that is
    missing or in two subsets, if nothing is left for train, and for a folder of another job.
    """
    described, folder = load_manifest(manifest), Path(out)
    sources = find_sources(described, manifest, folder)
    corpus_job = CorpusJob.of_steps(Corpus.of_shards(sources, described), **work)
    memory = corpus_job.sort_bytes
    if memory < 64 * 10**6:
        raise PilekitError(f"memory is {memory:,} bytes; 64 MB is the least")
    inputs = inputs_of(sources, described)
    parameters = {
        **msgspec.structs.asdict(described.assemble),
        "text_field": described.text_field,
        "label_path": described.label_path,
        "on_error": corpus_job.on_error,
        "subsets": [[subset.name, epochs_of(subset), subset.keep] for subset in described.subsets],
    }
    _take_other_settings(folder, parameters, inputs)
    result, written = None, False
    locked_folder = output_folder(
        folder, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    )
    with suppress(_Planned), locked_folder as output:
        plan_file = folder / SCRATCH / f"{xxhash.xxh3_128_hexdigest(msgspec.json.encode(parameters))}.npz"
        job = Job(described, plan_file, corpus_job.on_error)
        folder_job = FolderJob(**vars(corpus_job), output=output, inputs=inputs)

        def step(name: str, shards: Sequence[Shard]) -> FolderJob:
            return folder_job.step(name, sum(shard.size or 0 for shard in shards))

        result = output.result(DONE)
        if result is None or any(output.result(name) is None for name in result["documents"]):
            notes = step("counting", sources).process_unfinished(partial(count_source, job=job))
            result = _plan(job, sources, notes, output, corpus_job.own_scratch(plan_file.parent), memory)
            if plan:
                raise _Planned
            names = result["documents"]
            needed = int(result["text_bytes"] * (SPILLED_PER_TEXT + STORED_PER_TEXT))
            check_free_disk(folder, needed - bytes_below(folder), "assembling")
            spill = partial(spill_source, job=job)
            step("spilling", sources).process_unfinished(spill, note=SPILLED, memory=memory)
            shards = [Shard(name, name, result["text_bytes"] // len(names)) for name in names]
            write = partial(write_output, job=job)
            written_shards = step("writing", shards).process_unfinished(write, shards, memory=memory)
            for name, note in written_shards.items():
                if note["documents"] != names[name]:
                    raise RuntimeError(f"{name} was planned with {names[name]} documents, not {note['documents']}")
            output.note(DONE, result, write_json(folder / SUMMARY, result["summary"]))
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
        written = True
    assert result is not None
    skipped = SkippedLines.from_note({**result, **result["summary"]})
    return AssembledCorpus(folder, result["summary"], result["planned"], skipped, written)


def _take_other_settings(folder: Path, parameters: Mapping[str, Any], inputs: Inputs) -> None:
    """Replace the settings of a folder in which no line has been written yet."""
    with suppress(PilekitError):
        read_header(folder, KIND)
        with locked(folder / LOCK_FILE, wait=False):
            begun = (folder / SCRATCH / LINES).exists() or (folder / SUMMARY).exists()
            if read_header(folder, KIND).finished is False and not begun:
                write_header(folder, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, finished=False)


def _plan(
    job: Job, sources: list[Source], notes: Mapping[str, Any], output: Output, scratch: Path, memory: int
) -> dict[str, Any]:
    """The plan, made if it is missing: the summary, planned shares, bad lines, and documents of each output.

    notes   the results of the first pass, by the source's name
    """
    manifest, name = job.manifest, f"/plan/{job.plan.name}"
    if noted := output.result(name):
        return noted
    plan, counts = make_plan(manifest, partial(read_rows, output, sources), scratch, memory)
    with write_atomically(job.plan) as file:
        plan.save(file)
    rows: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = {}
    for place, subset in enumerate(manifest.subsets):
        subset_notes = [notes[source.name] for source in sources if source.subset == place]
        read = {name: sum(note[name] for note in subset_notes) for name in ("read", "empty", "skipped", "text_bytes")}
        row = {"epochs": epochs_of(subset), **read, **counts[place]}
        weights[subset.name] = row["epochs"] * row["text_bytes"]
        rows[subset.name] = {name: row[name] for name in ("epochs", "bytes", *COUNTS)}
    check_none_lost(rows, PARTS)
    totals = {name: sum(row[name] for row in rows.values()) for name in COUNTS}
    if not totals["train"]:
        raise PilekitError(
            f"nothing is left for train: of {counted(totals['read'])}, {totals['empty']:,} are empty, "
            f"{totals['val'] + totals['test']:,} held out, {totals['removed']:,} removed and "
            f"{totals['left_out']:,} left out"
        )
    seed, shards = manifest.assemble.seed, manifest.assemble.shards
    *train, val, test = outputs(shards)
    cuts = [totals["train"] * shard // shards for shard in range(shards + 1)]
    planned = {
        "summary": {"seed": seed, "shards": shards, **totals, "subsets": rows},
        "planned": {name: weight / (sum(weights.values()) or 1) for name, weight in weights.items()},
        "bad_lines": [bad for source in sources for bad in notes[source.name]["bad_lines"]][:LISTED_BAD_LINES],
        "documents": {
            **{name: last - first for name, (first, last) in zip(train, pairwise(cuts), strict=True)},
            **{name: totals[split] for name, split in ((val, "val"), (test, "test")) if totals[split]},
        },
        "text_bytes": sum(planned["bytes"] + planned["held_out_bytes"] for planned in counts),
    }
    output.note(name, planned, job.plan)
    return planned
