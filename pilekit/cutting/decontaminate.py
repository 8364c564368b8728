"""`decontaminate`: a corpus without the text of evaluations, with a proof for each cut.

    n-grams of the evaluations -> hits (each shard) -> common n-grams, spans -> cut (each shard) -> summary.json

Hits, tables and clean shards are files, complete or absent; after a kill, the next run makes the rest.
`hits.parquet`, `common.parquet`, `evaluations.parquet`, `too_short.parquet`, `clean/` and `summary.json` stay;
`scratch/` is removed. The result depends only on the shards, the evaluations and the parameters.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.cutting.cut_job import FOUND, SCRATCH, CutJob, cut_job
from pilekit.cutting.cut_result import Decontamination
from pilekit.cutting.cut_shards import pieces_around
from pilekit.cutting.evaluation_texts import read_records
from pilekit.cutting.hits import HITS, Texts, decide, find_hits
from pilekit.cutting.ngrams import LONGEST, SHORTEST, NGrams
from pilekit.engine import Advance, Ray
from pilekit.errors import PilekitError, counted, visible
from pilekit.progress import Report
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.read.reader import OnError

KIND = "decontamination"
_HITS = "/hits/"
"""The prefix of the notes' names."""

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
    engine: Ray | None = None,
) -> Decontamination:
    """Cut the text of evaluations out of a corpus, and write the result into the folder `out`.

    data      a `Corpus`, or a path, glob or URL, or several of them
    against   evaluations: JSON lines, Parquet or Pile shards
    fields    a record's texts: each field by itself, and if there are several, all joined
    ngram     words in an n-gram; a text of 8 or more words that is shorter is matched whole
    common    n-grams in more documents of the corpus than this are ignored; 0: ignore none
    window    characters to cut on each side of a span
    remove    "spans", or "documents": drop each document with a span
    subsets   search the documents of these subsets, in any spelling the manifest knows; None: all
    only      leave out the documents of other subsets, rather than pass them through
    write     write the clean shards; else only the tables and the summary
    jobs      number of shards at a time, each in its own process; None: the usable CPUs
    on_error  "raise": a bad line of the corpus is a `PilekitError`; "skip": it is counted and listed
    advance   receives the progress of each step
    engine    a cluster instead of local processes

    A killed run is resumed; a repeated finished run returns at once.
    """
    fields = [fields] if isinstance(fields, str) else list(dict.fromkeys(fields))
    parameters: dict[str, Any] = {"fields": fields, "ngram": ngram, "common": common, "window": window}
    parameters["remove"] = remove
    try:
        msgspec.convert(parameters | {"jobs": jobs, "on_error": on_error}, _Options)
    except msgspec.ValidationError as error:
        raise PilekitError(f"decontaminate: {visible(str(error), 200)}") from None
    if not all(fields) or not fields:
        raise PilekitError("fields names the fields of an evaluation's records; one has no name")
    corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
    evaluations = Corpus(against)
    both = {str(shard.path) for shard in corpus.shards} & {str(shard.path) for shard in evaluations.shards}
    if both:
        raise PilekitError(f"{visible(min(both))}: is in the corpus too; an evaluation would be cut out of itself")
    common_options: dict[str, Any] = {"subsets": subsets, "only": only, "write": write, "jobs": jobs}
    common_options |= {"on_error": on_error, "advance": advance, "engine": engine, "evaluations": evaluations}
    with cut_job(corpus, out, kind=KIND, parameters=parameters, **common_options) as job:
        if not job.output.finished:
            cut_off = window if remove == "spans" else sys.maxsize  # all of a document
            found = job.found() or _find(job, evaluations, fields, ngram, common)
            job.cut(found, HITS, pieces=functools.partial(pieces_around, window=cut_off))
        return Decontamination(*job.result())


def _find(job: CutJob, evaluations: Corpus, fields: Sequence[str], ngram: int, common: int) -> dict[str, Any]:
    """Search all shards, and write and note the tables."""
    job.scratch.mkdir(parents=True, exist_ok=True)
    texts, least = Texts([], [], [], []), min(SHORTEST, ngram)
    ngrams = NGrams.build(texts.words(read_records(evaluations, fields), least), ngram)
    if not len(ngrams.keys):
        raise PilekitError(
            f"none of {counted(len(texts.records), 'record')} has a text of {least} words to look for; name other "
            "--fields"
        )
    needs = ngrams.save(job.scratch)
    options = {"ngrams": job.scratch, "compared": job.compared, **job.reading}
    read = job.each_shard("searching", _HITS, _note_hits, needs, **options)
    parts = {name: _part(job.output, name) for name in read}
    counts, files = decide(job.output.folder, parts, ngrams, texts, common)
    found = {"read": read, "summary": {"evaluations": counts}}
    job.output.note(FOUND, found, *files)
    return found


def _part(output: Output, shard: str) -> Path:
    return output.path(f"{SCRATCH}/hits/{shard}", ".parquet")


def _note_hits(shard: Shard, advance: Advance, *, output: Output, inputs: Inputs, **options: Any) -> None:
    path = _part(output, shard.name)
    result = find_hits(shard, advance, path=path, **options)
    inputs.check(shard)
    output.note(_HITS + shard.name, result, path)
