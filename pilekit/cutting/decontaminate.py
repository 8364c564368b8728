"""`decontaminate`: a corpus without the text of evaluations, with a proof for each cut.

    n-grams of the evaluations -> hits (each shard) -> common n-grams, spans -> cut (each shard) -> summary.json

`hits.parquet`, `common.parquet`, `evaluations.parquet`, `too_short.parquet`, `clean/` and `summary.json` stay.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pilekit.corpus import Corpus, Manifest
from pilekit.cutting.cut_job import CutJob, Remove, cut_corpus
from pilekit.cutting.cut_result import Decontamination
from pilekit.cutting.cut_shards import pieces_around
from pilekit.cutting.evaluation_texts import read_records
from pilekit.cutting.hits import HITS, Texts, decide, find_hits
from pilekit.cutting.ngrams import SHORTEST, NGrams
from pilekit.engine import Ray
from pilekit.errors import PilekitError, counted, visible
from pilekit.progress import Report
from pilekit.shards.read.reader import OnError

KIND = "decontamination"


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
    if not all(fields) or not fields:
        raise PilekitError("fields names the fields of an evaluation's records; one has no name")
    corpus = data if isinstance(data, Corpus) else Corpus(data, manifest)
    evaluations = Corpus(against)
    both = {str(shard.path) for shard in corpus.shards} & {str(shard.path) for shard in evaluations.shards}
    if both:
        raise PilekitError(f"{visible(min(both))}: is in the corpus too; an evaluation would be cut out of itself")
    parameters = {"fields": fields, "ngram": ngram, "common": common, "window": window, "remove": remove}
    find = partial(_find, evaluations=evaluations, fields=fields, ngram=ngram, common=common)
    cut_off = window if remove == "spans" else sys.maxsize  # all of a document
    options: dict[str, Any] = {"subsets": subsets, "only": only, "write": write, "jobs": jobs, "on_error": on_error}
    options |= {"advance": advance, "engine": engine, "find": find, "pieces": partial(pieces_around, window=cut_off)}
    options |= {"evaluations": evaluations, "table": HITS, "parameters": parameters}
    return Decontamination(*cut_corpus(corpus, out, kind=KIND, **options))


def _find(
    job: CutJob, evaluations: Corpus, fields: Sequence[str], ngram: int, common: int
) -> tuple[dict[str, Any], list[Path]]:
    """Search all shards, and write the tables."""
    job.scratch.mkdir(parents=True, exist_ok=True)
    texts, least = Texts([], [], [], []), min(SHORTEST, ngram)
    ngrams = NGrams.build(texts.words(read_records(evaluations, fields), least), ngram)
    if not len(ngrams.keys):
        raise PilekitError(
            f"none of {counted(len(texts.records), 'record')} has a text of {least} words to look for; name other "
            "--fields"
        )
    read = job.each_shard("searching", "hits", find_hits, ngrams.save(job.scratch), ngrams=job.scratch)
    parts = {name: (path, read[name]["labels"]) for name, path in zip(read, job.files("hits"), strict=True)}
    counts, files = decide(job.output.folder, parts, ngrams, texts, common)
    return {"read": read, "summary": {"evaluations": counts}}, files
