"""`decontaminate`: a corpus without the text that evaluations hold, with a proof for each cut.

    n-grams of the evaluations -> hits (each shard) -> common n-grams, spans -> cut (each shard) -> summary.json

Hits, tables and clean shards are files that are complete or not there; after a kill, the next run makes the rest.
`hits.parquet`, `common.parquet`, `evaluations.parquet`, `too_short.parquet`, `clean/` and `summary.json` stay;
`scratch/` is removed. The result depends on the shards, the evaluations and the parameters alone.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.corpus import Corpus, Manifest, Shard, subsets_or_all
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.cutting.cut_shards import cut_shard, pieces_around, summed
from pilekit.cutting.decontamination import SUMMARY, Decontamination
from pilekit.cutting.evaluation_texts import read_records
from pilekit.cutting.hits import HITS, Texts, decide, find_hits
from pilekit.cutting.ngrams import LONGEST, SHORTEST, NGrams
from pilekit.engine import Advance
from pilekit.errors import PilekitError, counted, visible
from pilekit.pipeline.shard_job import all_skipped, check_names, stem
from pilekit.progress import Report
from pilekit.shards.each_shard import finish_shards
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.read.json_records import bad_line_error
from pilekit.shards.read.reader import OnError

KIND = "decontamination"
CLEAN, SCRATCH = "clean", "scratch"
_HITS, _CUT, _DECIDED, _DONE = "/hits/", "/cut/", "/decided", "/summary"
"""Names of notes, the first two before a shard's name; no shard's name begins with a slash."""

Remove = Literal["spans", "documents"]


class _Options(msgspec.Struct):
    """The arguments of `decontaminate` that have a range."""

    ngram: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)]
    common: Annotated[int, msgspec.Meta(ge=0)]
    window: Annotated[int, msgspec.Meta(ge=0)]
    remove: Remove
    jobs: Annotated[int, msgspec.Meta(ge=1)] | None
    on_error: OnError


def decontaminate(
    data: Corpus | str | Path | Sequence[str | Path] | None = None,
    *,
    against: str | Path | Sequence[str | Path],
    fields: Sequence[str] = ("text",),
    ngram: int = 13,
    common: int = 10,
    window: int = 200,
    remove: Remove = "spans",
    subsets: str | Sequence[str] | None = None,
    only: bool = False,
    out: str | Path = "decontaminated",
    write: bool = True,
    jobs: int | None = None,
    on_error: OnError = "raise",
    manifest: Manifest | str | Path | None = None,
    advance: Report | None = None,
) -> Decontamination:
    """Cut out of a corpus what evaluations hold, and write the result into the folder `out`.

    data      a `Corpus`, or a path, glob or URL, or several of them
    against   evaluations: JSON lines, Parquet or Pile shards
    fields    a record's texts: each field by itself, and if there are several, all joined
    ngram     words in an n-gram; a text of 8 or more words that is shorter is matched whole
    common    n-grams in more documents of the corpus than this are ignored; 0: none is
    window    characters that are cut on each side of a span
    remove    "spans", or "documents": each document with a span goes
    subsets   search the documents of these subsets, in any spelling the manifest knows; None: all
    only      leave out the documents of other subsets, rather than pass them through
    write     write the clean shards; else only the tables and the summary
    jobs      number of shards at a time, each in its own process; None: the usable CPUs
    on_error  "raise": a bad line of the corpus is a `PilekitError`; "skip": it is counted and listed
    advance   receives the progress of each step

    A killed run is resumed; a repeated finished run returns at once.
    """
    fields = [fields] if isinstance(fields, str) else list(dict.fromkeys(fields))
    parameters: dict[str, Any] = {"fields": fields, "ngram": ngram, "common": common, "window": window}
    parameters |= {"remove": remove, "only": only, "write": write}
    try:
        msgspec.convert(parameters | {"jobs": jobs, "on_error": on_error}, _Options)
    except msgspec.ValidationError as error:
        raise PilekitError(f"decontaminate: {visible(str(error), 200)}") from None
    if not all(fields) or not fields:
        raise PilekitError("fields names the fields of an evaluation's records; one has no name")
    if only and subsets is None:
        raise PilekitError("`only` leaves out the documents of other subsets; name subsets too")
    if out == "":
        raise PilekitError("out is empty; name a folder")
    corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
    evaluations = Corpus(against)
    both = {str(shard.path) for shard in corpus.shards} & {str(shard.path) for shard in evaluations.shards}
    if both:
        raise PilekitError(f"{visible(min(both))}: is in the corpus too; an evaluation would be cut out of itself")
    if any(shard.path == STANDARD_INPUT for shard in (*corpus.shards, *evaluations.shards)):
        raise PilekitError("standard input (-) cannot be decontaminated, as it is read twice; save it to a file first")
    if write:
        check_names(corpus.shards)
    chosen = subsets_or_all([subsets] if isinstance(subsets, str) else subsets, corpus.manifest)
    parameters["subsets"] = None if chosen is None else sorted(chosen)
    parameters |= {"text_field": corpus.manifest.text_field, "label_path": corpus.manifest.label_path}
    inputs, held = inputs_for(out, corpus.shards), inputs_for(out, evaluations.shards)
    for kept, values in ((inputs.fingerprints, held.fingerprints), (inputs.versions, held.versions)):
        kept.update({f"/{name}": value for name, value in values.items()})
    with output_folder(
        out, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    ) as output:
        if not output.finished:
            _run(_Job(corpus, evaluations, output, parameters, inputs, on_error, jobs, advance))
        skipped = all_skipped(output.results()[_DECIDED]["shards"], corpus.shards)
        if on_error == "raise" and skipped.count:  # An earlier run skipped lines that are an error now.
            raise bad_line_error(skipped.examples[0])
        return Decontamination(output.folder, msgspec.json.decode((output.folder / SUMMARY).read_bytes()), skipped)


class _Job(NamedTuple):
    """What the steps share."""

    corpus: Corpus
    evaluations: Corpus
    output: Output
    parameters: dict[str, Any]
    inputs: Inputs
    on_error: OnError
    jobs: int | None
    advance: Report | None

    def each_shard(self, step: str, note: str, work: Callable[..., None], **options: Any) -> dict[str, Any]:
        """Do the work on the shards that have no note yet; the notes' results by shard."""
        shards, inputs, report = self.corpus.shards, self.inputs, self.advance
        total = sum(inputs.fingerprints[shard.name][0] for shard in shards)
        progress: Advance | None = None if report is None else lambda amount: report(step, amount, total)
        options |= {"subsets": self.parameters["subsets"] if self.parameters["only"] else None}
        options |= {"manifest": self.corpus.manifest, "on_error": self.on_error}
        work = functools.partial(work, **options)
        return finish_shards(work, shards, self.output, inputs, jobs=self.jobs, advance=progress, note=note)


def _run(job: _Job) -> None:
    """Every step that no earlier run has finished."""
    output, scratch = job.output, job.output.folder / SCRATCH
    decided = output.result(_DECIDED) or _decide(job, scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    window = job.parameters["window"] if job.parameters["remove"] == "spans" else sys.maxsize  # all of a document
    pieces = functools.partial(pieces_around, window=window)
    read = decided["shards"]
    done = job.each_shard("cutting", _CUT, _note_cut, write=job.parameters["write"], pieces=pieces, counted=read)
    summary = summed([cut["subsets"] for cut in done.values()], [read[name] for name in done])
    summary["evaluations"] = decided["evaluations"]
    with write_atomically(output.folder / SUMMARY) as file:
        file.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    output.note(_DONE, {}, output.folder / SUMMARY)


def _decide(job: _Job, scratch: Path) -> dict[str, Any]:
    """Search all shards, and write and note the tables."""
    scratch.mkdir(parents=True, exist_ok=True)
    texts, parameters = Texts([], [], [], []), job.parameters
    records = read_records(job.evaluations, parameters["fields"])
    ngrams = NGrams.build(texts.words(records, min(SHORTEST, parameters["ngram"])), parameters["ngram"])
    if not len(ngrams.keys):
        raise PilekitError(
            f"none of {counted(len(texts.records), 'record')} has a text of {min(SHORTEST, parameters['ngram'])} words "
            "to look for; name other --fields"
        )
    ngrams.save(scratch)
    read = job.each_shard("searching", _HITS, _note_hits, ngrams=scratch, compared=parameters["subsets"])
    parts = {name: _part(job.output, name) for name in read}
    counts, files = decide(job.output.folder, parts, ngrams, texts, parameters["common"])
    decided = {"shards": read, "evaluations": counts}
    job.output.note(_DECIDED, decided, *files)
    return decided


def _part(output: Output, shard: str) -> Path:
    return output.path(f"{SCRATCH}/hits/{shard}", ".parquet")


def _note_hits(shard: Shard, advance: Advance, *, output: Output, inputs: Inputs, **options: Any) -> None:
    path = _part(output, shard.name)
    result = find_hits(shard, advance, path=path, **options)
    inputs.check(shard)
    output.note(_HITS + shard.name, result, path)


def _note_cut(
    shard: Shard, advance: Advance, *, output: Output, write: bool, counted: Mapping[str, Any], **options: Any
) -> None:
    path = output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst") if write else None
    options |= {"table": output.folder / HITS, "before": counted[shard.name]["read"]}
    counts, files = cut_shard(shard, advance, path=path, **options)
    output.note(_CUT + shard.name, {"subsets": counts}, *files)
