"""`decontaminate`: a corpus without the text that evaluations hold, with a proof for each cut.

    n-grams of the evaluations -> hits (each shard) -> common n-grams, spans -> cut (each shard) -> summary.json

Hits, tables and clean shards are files that are complete or not there; after a kill, the next run makes the rest.
`hits.parquet`, `common.parquet`, `evaluations.parquet`, `too_short.parquet`, `clean/` and `summary.json` stay;
`scratch/` is removed. The result depends on the shards, the evaluations and the parameters alone.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output, output_folder
from pilekit.corpus import Corpus, Manifest, Shard, subsets_or_all
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.cutting.cut_shards import Spans, cut_shard, pieces_around, read_spans, summed
from pilekit.cutting.decontamination import SUMMARY, Decontamination
from pilekit.cutting.evaluation_texts import evaluation_names, read_records
from pilekit.cutting.hits import HITS, Texts, decide, find_hits
from pilekit.cutting.ngrams import LONGEST, SHORTEST, NGrams
from pilekit.cutting.words import normalised
from pilekit.engine import Advance, map_shards
from pilekit.errors import PilekitError, counted, visible
from pilekit.pipeline.shard_job import all_skipped, check_names, stem
from pilekit.progress import Report
from pilekit.shards.fingerprint import Inputs, inputs_for
from pilekit.shards.processes import decompress_ahead, processes_for
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
    try:
        given = (ngram, common, window, remove, jobs, on_error)
        msgspec.convert(dict(zip(_Options.__struct_fields__, given, strict=True)), _Options)
    except msgspec.ValidationError as error:
        raise PilekitError(f"decontaminate: {visible(str(error), 200)}") from None
    fields = [fields] if isinstance(fields, str) else list(dict.fromkeys(fields))
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
    inputs, held = inputs_for(out, corpus.shards), inputs_for(out, evaluations.shards)
    for kept, values in ((inputs.fingerprints, held.fingerprints), (inputs.versions, held.versions)):
        kept.update({f"/{name}": value for name, value in values.items()})
    parameters = {
        "fields": fields,
        "ngram": ngram,
        "common": common,
        "window": window,
        "remove": remove,
        "subsets": None if chosen is None else sorted(chosen),
        "only": only,
        "write": write,
        "text_field": corpus.manifest.text_field,
        "label_path": corpus.manifest.label_path,
    }
    with output_folder(
        out, kind=KIND, parameters=parameters, inputs=inputs.fingerprints, versions=inputs.versions
    ) as output:
        if not output.finished:
            _Run(corpus, evaluations, output, parameters, inputs, on_error, jobs, advance).run()
        results = output.results()
        skipped = all_skipped(results[_DECIDED]["shards"], corpus.shards)
        if on_error == "raise" and skipped.count:  # An earlier run skipped lines that are an error now.
            raise bad_line_error(skipped.examples[0])
        return Decontamination(output.folder, msgspec.json.decode((output.folder / SUMMARY).read_bytes()), skipped)


class _Run:
    """The steps of a run, in their order."""

    def __init__(
        self,
        corpus: Corpus,
        evaluations: Corpus,
        output: Output,
        parameters: dict[str, Any],
        inputs: Inputs,
        on_error: OnError,
        jobs: int | None,
        advance: Report | None,
    ):
        self._corpus, self._evaluations, self._output, self._inputs = corpus, evaluations, output, inputs
        self._parameters, self._jobs, self._advance = parameters, jobs, advance
        self._scratch = output.folder / SCRATCH
        self._common: dict[str, Any] = {"manifest": corpus.manifest, "on_error": on_error}

    def run(self) -> None:
        """Every step that no earlier run has finished."""
        decided = self._output.result(_DECIDED)
        if decided is None:
            decided = self._decide()
        shutil.rmtree(self._scratch, ignore_errors=True)
        done = self._cut(decided["shards"])
        summary = summed(done, [decided["shards"][shard.name] for shard in self._corpus.shards])
        with write_atomically(self._output.folder / SUMMARY) as file:
            summary["evaluations"] = decided["evaluations"]
            file.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        self._output.note(_DONE, {}, self._output.folder / SUMMARY)

    def _decide(self) -> dict[str, Any]:
        """Search all shards, and write and note the tables."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        texts, ngram = Texts(), self._parameters["ngram"]

        def words() -> Iterator[list[str]]:
            for record in read_records(self._evaluations, self._parameters["fields"]):
                found = {field: normalised(text) for field, text in record.texts.items()}
                yield from texts.add(record, found, min(SHORTEST, ngram))

        ngrams = NGrams.build(words(), ngram)
        if not len(ngrams.keys):
            raise PilekitError(
                f"none of {counted(len(texts.records), 'record')} has a text of {ngrams.sizes[1]} words to look for; "
                "name other --fields"
            )
        ngrams.save(self._scratch)
        subsets = self._parameters["subsets"]
        work = functools.partial(
            _note_hits,
            output=self._output,
            ngrams=self._scratch,
            subsets=None if subsets is None else frozenset(subsets),
            only=self._parameters["only"],
            **self._common,
        )
        read = self._shards("searching", work, _HITS)
        parts = [(shard.name, _part(self._output, shard)) for shard in self._corpus.shards]
        evaluations, files = decide(self._output.folder, parts, ngrams, texts, self._parameters["common"])
        counts = {name: evaluations[name] for name in evaluation_names(self._evaluations.shards) if name in evaluations}
        decided = {"shards": read, "evaluations": counts}
        self._output.note(_DECIDED, decided, *files)
        return decided

    def _cut(self, read: dict[str, Any]) -> list[dict[str, Any]]:
        """Cut every shard; what was counted of each."""
        window = self._parameters["window"]
        pieces = functools.partial(pieces_around, window=window) if self._parameters["remove"] == "spans" else _nothing
        subsets = self._parameters["subsets"] if self._parameters["only"] else None
        work = functools.partial(
            _note_cut,
            output=self._output,
            write=self._parameters["write"],
            pieces=pieces,
            subsets=subsets,
            **self._common,
        )
        done = self._shards("cutting", work, _CUT)
        untouched = {
            name: {sub: {"untouched": count} for sub, count in of["read"].items()} for name, of in read.items()
        }
        return [done[shard.name]["subsets"] or untouched[shard.name] for shard in self._corpus.shards]

    def _shards(self, step: str, work: Callable[..., None], notes: str) -> dict[str, Any]:
        """Do the work on the shards that have no note yet; the notes' results by shard."""
        shards, inputs, report = self._corpus.shards, self._inputs, self._advance
        waiting = [shard for shard in shards if self._output.result(notes + shard.name) is None]
        total = sum(inputs.fingerprints[shard.name][0] for shard in shards)
        progress: Advance = (lambda amount: None) if report is None else lambda amount: report(step, amount, total)
        progress(total - sum(inputs.fingerprints[shard.name][0] for shard in waiting))
        processes = processes_for(waiting, self._jobs)
        work = functools.partial(work, inputs=inputs, ahead=decompress_ahead(processes))
        map_shards(work, waiting, jobs=processes, on_progress=progress)
        results = self._output.results()
        return {shard.name: results[notes + shard.name] for shard in shards}


def _nothing(text: str, spans: Spans) -> list[str]:
    return []


def _part(output: Output, shard: Shard) -> Path:
    return output.path(f"{SCRATCH}/hits/{shard.name}", ".parquet")


def _note_hits(shard: Shard, advance: Advance, *, output: Output, inputs: Inputs, **options: Any) -> None:
    path = _part(output, shard)
    result = find_hits(shard, advance, path=path, **options)
    inputs.check(shard)
    output.note(_HITS + shard.name, result, path)


def _note_cut(shard: Shard, advance: Advance, *, output: Output, inputs: Inputs, write: bool, **options: Any) -> None:
    path = output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst") if write else None
    table, counts, files = output.folder / HITS, None, list[Path]()
    if write or read_spans(table, shard.name):
        counts, files = cut_shard(shard, advance, table=table, path=path, inputs=inputs, **options)
    output.note(_CUT + shard.name, {"subsets": counts}, *files)
