"""`cut_corpus`: the steps that both commands share. The first finds the spans to cut, the next cuts them by shard.

    find -> a table of spans, documents read of each shard -> cut (each shard) -> summary.json

Each step's files are complete or absent. After a kill, the next run makes the rest. The tables, `clean/` and
`summary.json` stay, and `scratch/` is removed. The result depends only on the inputs and the parameters.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from pilekit.artifacts.atomic_write import write_json
from pilekit.artifacts.checked import checked
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Shard
from pilekit.corpus.job_shards import CLEAN
from pilekit.corpus.shard import STANDARD_INPUT, check_stems, stem
from pilekit.cutting.ngrams import LONGEST
from pilekit.cutting.result import SUMMARY
from pilekit.cutting.shards import CutScope, CutShard, Spans
from pilekit.cutting.verdicts import Verdict
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.documents import add_counts, check_none_lost
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share, await_files
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.folder_job import FolderJob, corpus_folder
from pilekit.shards.read.absent_label import check_label
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.read.reader import OnError
from pilekit.workers import Advance

SCRATCH, FOUND = "scratch", "/found"
PATHS, EVALUATION_PATHS = "paths", "evaluation_paths"
"""Keys in the note of the first step: the paths of the shards, and of the evaluations' files."""
PARTS = ("untouched", "cut", "dropped")
COUNTS = (*PARTS, "pieces", "spans", "characters_removed")

Remove = Literal["spans", "documents"]


class _CutOptions(msgspec.Struct):
    """The arguments of both commands that have a range."""

    jobs: Annotated[int, msgspec.Meta(ge=1)] | None
    on_error: OnError
    ngram: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)] = 1
    common: Annotated[int, msgspec.Meta(ge=0)] = 0
    window: Annotated[int, msgspec.Meta(ge=0)] = 0
    remove: Remove = "spans"
    reach: Annotated[int, msgspec.Meta(ge=0)] = 0
    cut: list[Verdict] | None = None
    min_bytes: Annotated[int, msgspec.Meta(ge=8, le=1 << 16)] = 8
    memory: Annotated[int, msgspec.Meta(ge=64 * 10**6)] = 1 << 30


class CutWork(Protocol):
    """The work on a shard that writes the file `path`; returns a result and the paths written."""

    def __call__(  # noqa: D102
        self, shard: Shard, advance: Advance, /, *, path: Path, share: Share
    ) -> tuple[dict[str, Any], list[Path]]: ...


@dataclass(frozen=True)
class CutJob:
    """A run: its work on shards, and the documents to search."""

    folder_job: FolderJob
    scope: CutScope

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.folder_job.output.folder

    @property
    def scratch(self) -> Path:
        """The folder of temporary files."""
        return self.folder / SCRATCH

    @property
    def stored(self) -> int:
        """Stored bytes of all shards."""
        return sum(self.folder_job.inputs.fingerprints[shard.name][0] for shard in self.folder_job.shards)

    def files(self, name: str) -> list[Path]:
        """The file of each shard that a step writes."""
        return [_path(self.folder_job.output, name, shard) for shard in self.folder_job.shards]

    def process_step(
        self, step: str, name: str, work: CutWork, needs: Sequence[Path] = ()
    ) -> dict[str, dict[str, Any]]:
        """Do the work on the shards that have no note yet; returns the results in all shards' notes, by shard name.

        step    shown as progress
        name    the step's name in notes and files
        needs   files that this process wrote and the work reads, perhaps on another node
        """
        noted_work = functools.partial(_noted, name=name, work=work, needs=needs)
        return self.folder_job.step(step, self.stored).process_unfinished(noted_work, note=f"/{name}/")


@dataclass(frozen=True)
class CutCommand:
    """What one of the two commands does.

    kind     the kind of its folder
    table    the name of the table of spans
    find     writes the table; returns the counts of each shard as `read`, further fields of the summary as `summary`,
             and the paths written
    pieces   cuts the spans out of a text
    write    write the clean shards; else only the tables and the summary
    counts   the names of the counts in the summary
    """

    kind: str
    table: str
    find: Callable[[CutJob], tuple[dict[str, Any], list[Path]]]
    pieces: Callable[[str, Spans], list[str]]
    write: bool
    counts: Sequence[str] = COUNTS


def cut_corpus(
    job: CorpusJob,
    out: str | Path,
    command: CutCommand,
    parameters: dict[str, Any],
    scope: CutScope,
    evaluations: Corpus | None = None,
) -> tuple[Path, dict[str, Any], SkippedLines]:
    """Run a command in the folder `out`; returns the folder, the summary and the bad lines.

    job          the corpus, and how the work on its shards runs
    parameters   settings that the output depends on, in addition to those of `scope`
    evaluations  inputs in addition to the corpus
    """
    corpus = job.corpus
    checked({**parameters, "jobs": job.jobs, "on_error": job.on_error, "memory": job.sort_bytes}, _CutOptions)
    if out == "":
        raise PilekitError("out is empty; name a folder")
    further_inputs = [] if evaluations is None else evaluations.shards
    if any(shard.path == STANDARD_INPUT for shard in (*corpus.shards, *further_inputs)):
        raise PilekitError("standard input (-) cannot be read again, as this command does; save it to a file first")
    if command.write:
        check_stems(corpus.shards)
    parameters = {**parameters, "subsets": scope.subsets, "only": scope.only, "write": command.write}
    if scope.protected:
        parameters["held_out"] = scope.protected
    with corpus_folder(job, out, kind=command.kind, parameters=parameters, further_inputs=further_inputs) as folder_job:
        cut_job, output = CutJob(folder_job, scope), folder_job.output
        for shard in corpus.shards:
            if scope.dedup is not None and shard.name not in scope.protected:
                DropDuplicates(scope.dedup).mask(shard.name)  # Raises for a shard that was not deduplicated.
        if not output.finished:
            note = output.result(FOUND)
            if note is None:
                note, files = command.find(cut_job)
                output.note(FOUND, note | {PATHS: places_of(corpus)}, *files)
            shutil.rmtree(cut_job.scratch, ignore_errors=True)
            labels = {label for counts_of_shard in note["read"].values() for label in counts_of_shard["read"]}
            check_label(corpus, labels, scope.subsets, discard=output.discard)
            table, read = output.folder / command.table, note["read"]
            work = CutShard(table, command.write, read, command.pieces, folder_job.inputs.check, scope)
            cut = cut_job.process_step("cutting", CLEAN, work, [table])
            summary = {**_summed(read, cut, command.counts), **note["summary"]}
            output.note("/summary", {}, write_json(output.folder / SUMMARY, summary))
        skipped = SkippedLines.from_notes(output.results()[FOUND]["read"], corpus.shards)
        if job.on_error == "raise" and skipped.count:  # An earlier run skipped lines that are errors now.
            raise bad_line_error(skipped.examples[0])
        return output.folder, msgspec.json.decode((output.folder / SUMMARY).read_bytes()), skipped


def places_of(corpus: Corpus) -> dict[str, str]:
    """Where each shard is, by its name."""
    return {shard.name: shard.absolute_path for shard in corpus.shards}


def _path(output: Output, name: str, shard: Shard) -> Path:
    if name == CLEAN:
        return output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst")
    return output.path(f"{SCRATCH}/{name}/{shard.name}", "")


def _noted(
    shard: Shard,
    advance: Advance,
    *,
    name: str,
    work: CutWork,
    needs: Sequence[Path],
    share: Share,
    output: Output,
    inputs: Inputs,
) -> None:
    await_files(needs)
    result, files = work(shard, advance, path=_path(output, name, shard), share=share)
    inputs.check(shard)
    output.note(f"/{name}/{shard.name}", result, *files)


def _summed(
    before: Mapping[str, Mapping[str, Any]], cut: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> dict[str, Any]:
    """The summary of all shards' counts, the largest subsets first; PilekitError if they do not add up."""
    read = ({subset: {"read": documents} for subset, documents in counts["read"].items()} for counts in before.values())
    sums = functools.reduce(add_counts, [*read, *(counts["subsets"] for counts in cut.values())])
    largest = sorted(sums.items(), key=lambda item: (-item[1]["read"], item[0]))
    subsets = {subset: {name: counts.get(name, 0) for name in ("read", *names)} for subset, counts in largest}
    total = {name: sum(counts[name] for counts in subsets.values()) for name in ("read", *names)}
    check_none_lost({"all": total, **subsets}, PARTS)
    skipped, left_out = (sum(counts[name] for counts in before.values()) for name in ("skipped", "others"))
    all_read = total.pop("read") + skipped + left_out
    parts = {name: total.pop(name) for name in PARTS}
    return {"read": all_read, **parts, "skipped": skipped, "left_out": left_out, **total, "subsets": subsets}
