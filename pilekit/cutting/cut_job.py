"""`CutJob`: the steps that both commands share. The first finds the spans to cut, the next cuts them shard by shard.

    find -> a table of spans, documents read of each shard -> cut (each shard) -> summary.json

Each step's files are complete or absent. After a kill, the next run makes the rest. The tables, `clean/` and
`summary.json` stay, and `scratch/` is removed. The result depends only on the inputs and the parameters.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.corpus import Corpus, Shard, subsets_or_all
from pilekit.corpus.shard import STANDARD_INPUT, check_stems, stem
from pilekit.cutting.cut_result import SUMMARY
from pilekit.cutting.cut_shards import COUNTS, cut_shard, summed
from pilekit.engine import Advance, Ray, scratch_folder
from pilekit.errors import PilekitError
from pilekit.progress import Report
from pilekit.shards.each_shard import await_files, finish_shards
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.read.damage import SkippedLines
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError

CLEAN, SCRATCH = "clean", "scratch"
FOUND, _CUT, _DONE = "/found", "/cut/", "/summary"
"""Names of notes, the second before a shard's name; no shard's name begins with a slash."""


@dataclass(frozen=True)
class CutJob:
    """A run.

    compared   the subsets whose documents are searched; None: all
    reading    options of `read`, which may leave out other subsets
    """

    corpus: Corpus
    output: Output
    inputs: Inputs
    compared: list[str] | None
    reading: dict[str, Any]
    write: bool
    jobs: int | None
    advance: Report | None
    engine: Ray | None

    @property
    def scratch(self) -> Path:
        """The folder of temporary files."""
        return self.output.folder / SCRATCH

    @property
    def own_scratch(self) -> Path:
        """The folder of files without a name: on this node's own disk if a cluster is used."""
        return self.scratch if self.engine is None else scratch_folder(self.engine.scratch)

    def found(self) -> dict[str, Any] | None:
        """The result that an earlier run noted under `FOUND`."""
        return self.output.result(FOUND)

    def progress(self, step: str, total: int) -> Advance:
        """Reports a step's bytes."""
        report = self.advance
        return (lambda amount: None) if report is None else lambda amount: report(step, amount, total)

    def each_shard(
        self, step: str, note: str, work: Callable[..., None], needs: Sequence[Path] = (), **options: Any
    ) -> dict[str, dict[str, Any]]:
        """Do the work on the shards that have no note yet; the notes' results by shard.

        needs   files that this process wrote and the work reads, perhaps on another node
        """
        shards, work = self.corpus.shards, functools.partial(_when_there, work=work, needs=needs, **options)
        progress = self.progress(step, sum(self.inputs.fingerprints[shard.name][0] for shard in shards))
        given: dict[str, Any] = {"jobs": self.jobs, "advance": progress, "note": note, "engine": self.engine}
        return finish_shards(work, shards, self.output, self.inputs, **given)

    def cut(self, found: dict[str, Any], table: str, counts: Sequence[str] = COUNTS, **options: Any) -> None:
        """Cut all shards, and write the summary.

        found     `read`: the counts read of each shard, and `summary`: more for the summary
        table     the name of the table of spans
        options   of `cut_shard`
        """
        shutil.rmtree(self.scratch, ignore_errors=True)
        spans = self.output.folder / table
        options |= {"table": spans, "write": self.write, "counted": found["read"], **self.reading}
        done = self.each_shard("cutting", _CUT, _note_cut, [spans], **options)
        cut, read = [of["subsets"] for of in done.values()], [found["read"][name] for name in done]
        summary = {**summed(cut, read, counts), **found["summary"]}
        with write_atomically(self.output.folder / SUMMARY) as file:
            file.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        self.output.note(_DONE, {}, self.output.folder / SUMMARY)

    def result(self) -> tuple[Path, dict[str, Any], SkippedLines]:
        """The folder, the summary and the bad lines."""
        skipped = SkippedLines.of_shards(self.output.results()[FOUND]["read"], self.corpus.shards)
        if self.reading["on_error"] == "raise" and skipped.count:  # An earlier run skipped lines that are errors now.
            raise bad_line_error(skipped.examples[0])
        folder = self.output.folder
        return folder, msgspec.json.decode((folder / SUMMARY).read_bytes()), skipped


@contextmanager
def cut_job(
    corpus: Corpus,
    out: str | Path,
    *,
    kind: str,
    parameters: dict[str, Any],
    subsets: str | Sequence[str] | None,
    only: bool,
    write: bool,
    jobs: int | None,
    on_error: OnError,
    advance: Report | None,
    engine: Ray | None,
    evaluations: Corpus | None = None,
) -> Iterator[CutJob]:
    """Check the arguments of both commands, and open the folder."""
    if only and subsets is None:
        raise PilekitError("`only` leaves out the documents of other subsets; name subsets too")
    if out == "":
        raise PilekitError("out is empty; name a folder")
    inputs, more = inputs_for(out, corpus.shards), [] if evaluations is None else evaluations.shards
    if any(shard.path == STANDARD_INPUT for shard in (*corpus.shards, *more)):
        raise PilekitError("standard input (-) cannot be taken, as it is read several times; save it to a file first")
    if write:
        check_stems(corpus.shards)
    held = inputs_for(out, more)
    for kept, values in ((inputs.fingerprints, held.fingerprints), (inputs.versions, held.versions)):
        kept.update({f"/{name}": value for name, value in values.items()})
    manifest = corpus.manifest
    chosen = subsets_or_all([subsets] if isinstance(subsets, str) else subsets, manifest)
    compared = None if chosen is None else sorted(chosen)
    parameters = {**parameters, "subsets": compared, "only": only, "write": write}
    parameters |= {"text_field": manifest.text_field, "label_path": manifest.label_path}
    found, versions = inputs.fingerprints, inputs.versions
    with output_folder(out, kind=kind, parameters=parameters, inputs=found, versions=versions) as output:
        reading = {"subsets": compared if only else None, "manifest": manifest, "on_error": on_error}
        yield CutJob(corpus, output, inputs, compared, reading, write, jobs, advance, engine)


def _when_there(
    shard: Shard, advance: Advance, *, work: Callable[..., None], needs: Sequence[Path], **options: Any
) -> None:
    await_files(needs)
    work(shard, advance, **options)


def _note_cut(
    shard: Shard, advance: Advance, *, output: Output, write: bool, counted: Mapping[str, Any], **options: Any
) -> None:
    path = output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst") if write else None
    counts, files = cut_shard(shard, advance, path=path, before=counted[shard.name]["read"], **options)
    output.note(_CUT + shard.name, {"subsets": counts}, *files)
