"""`decontaminate_corpus`: a corpus without the text of evaluations, with a proof for each cut.

    n-grams of the evaluations -> hits (each shard) -> common n-grams, spans -> cut (each shard) -> summary.json

`hits.parquet`, `common.parquet`, `evaluations.parquet`, `too_short.parquet`, `clean/` and `summary.json` stay. The
stage `DropContaminated` drops the documents of `hits.parquet`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from pilekit.corpus import Corpus, Described, Source
from pilekit.cutting.answers import Answers
from pilekit.cutting.evaluation_texts import Texts
from pilekit.cutting.hits import find_hits
from pilekit.cutting.job import EVALUATION_PATHS, CutCommand, CutJob, Remove, cut_corpus, places_of
from pilekit.cutting.ngrams import SHORTEST_ITEM, NGrams
from pilekit.cutting.record_fields import RecordFields
from pilekit.cutting.result import DecontaminationResult
from pilekit.cutting.shards import CutScope, pieces_around, spans_of
from pilekit.cutting.verdicts import HITS, Judge, Verdict, decide
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted
from pilekit.pipeline.finished_run import FinishedRunStage
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.work import StepWork, takes

KIND, COMMAND = "decontamination", "pilekit decontaminate"


@takes(StepWork)
def decontaminate_corpus(
    corpus: Corpus | Source | None = None,
    out: str | Path = "decontaminated",
    *,
    against: str | Path | Sequence[str | Path],
    fields: str | Sequence[str] | None = None,
    question: str | None = None,
    answer: str | None = None,
    choices: str | None = None,
    reach: int = 500,
    cut: Verdict | Sequence[Verdict] | None = None,
    ngram: int = 13,
    common: int = 10,
    window: int = 200,
    remove: Remove = "spans",
    subsets: str | Sequence[str] | None = None,
    only: bool = False,
    write: bool = True,
    manifest: Described = None,
    **work: Unpack[StepWork],
) -> DecontaminationResult:
    """Cut the text of evaluations out of a corpus, and write the result into the folder `out`.

    corpus    a `Corpus`, or a path, glob or URL, or several of them; held-out shards among others are left out
    against   evaluations: JSON lines, Parquet or Pile shards
    fields    a record's texts: each field by itself, and if there are several, all joined; None: text without a
              question, and else none
    question  the field of a record's question, whose `answer` is its secret
    answer    the field of the answer: text, a number, true or false, a list of these, or an object with them as `text`;
              with `choices`, a label, a number from 0 or a letter
    choices   the field of the possible answers: a list, or an object with lists `text` and `label`
    reach     how many characters before or after its question an answer makes it a leak
    cut       the verdicts to cut, "leak", "question" or "text"; None: leak and question, and text of evaluations in
              which no record has an answer
    ngram     words in an n-gram; a text of 8 or more words, or a question of 5 or more with an answer, that is shorter
              is matched whole
    common    n-grams in more documents of the corpus than this are ignored; 0: ignore none
    window    characters to cut on each side of a span
    remove    "spans", or "documents": drop each document with a span
    subsets   search the documents of these subsets, in any spelling the manifest knows; None: all
    only      leave out the documents of other subsets, rather than pass them through
    write     write the clean shards; else only the tables and the summary
    manifest  describes the corpus at a path, as for `Corpus`
    work      on_error, jobs, advance, cluster: see `StepWork`

    A killed run is resumed; a repeated finished run returns at once.
    """
    if fields is None:
        fields = ["text"] if question is None else []
    fields = [fields] if isinstance(fields, str) else list(dict.fromkeys(fields))
    named = RecordFields([name for name in fields if name != question], question, answer, choices)
    corpus = Corpus.of(corpus, manifest).without_held_out()
    evaluations = Corpus(against)
    shared = {str(shard.path) for shard in corpus.shards} & {str(shard.path) for shard in evaluations.shards}
    if shared:
        raise PilekitError(f"{min(shared)}: is in the corpus too; an evaluation would be cut out of itself")
    verdicts: list[Verdict] | None = None if cut is None else sorted({cut} if isinstance(cut, str) else set(cut))
    if question is None and verdicts and {"leak", "question"}.issuperset(verdicts):
        raise PilekitError(
            f"cut is {' and '.join(verdicts)}, but without a question every span is text; name the fields of question "
            "and answer"
        )
    parameters = {"fields": named.texts, "ngram": ngram, "common": common, "window": window, "remove": remove}
    secret = {"question": question, "answer": answer, "choices": choices, "reach": reach if question else None}
    parameters |= {name: value for name, value in (secret | {"cut": verdicts}).items() if value is not None}
    find = partial(
        _find, evaluations=evaluations, fields=named, ngram=ngram, common=common, reach=reach, verdicts=verdicts
    )
    cut_off = window if remove == "spans" else sys.maxsize  # all of a document
    job = CorpusJob.of_steps(corpus, **work)
    command = CutCommand(KIND, HITS, find, partial(pieces_around, window=cut_off), write)
    scope = CutScope.for_job(job, subsets, only)
    return DecontaminationResult(*cut_corpus(job, out, command, parameters, scope, evaluations))


def _find(
    job: CutJob,
    evaluations: Corpus,
    fields: RecordFields,
    ngram: int,
    common: int,
    reach: int,
    verdicts: Sequence[Verdict] | None,
) -> tuple[dict[str, Any], list[Path]]:
    """Search all shards, and write the tables."""
    answer_folder = None if fields.question is None else job.scratch / "answers"
    (answer_folder or job.scratch).mkdir(parents=True, exist_ok=True)
    texts = Texts(fields)
    ngrams = NGrams.build(texts.read(evaluations, ngram), ngram, SHORTEST_ITEM)
    if not len(ngrams.keys):
        least = texts.shortest(ngram, fields.question is not None)
        raise PilekitError(
            f"none of {counted(len(texts.records), 'record')} has a text of {least} words to look for; name other "
            "--fields"
        )
    files = ngrams.save(job.scratch)
    if answer_folder is not None:
        files += Answers.build(ngrams, texts).save(answer_folder)
    search = partial(
        find_hits,
        ngram_folder=job.scratch,
        answer_folder=answer_folder,
        reach=reach,
        limit=common,
        scope=job.scope,
    )
    read = job.process_step("searching", "hits", search, files)
    parts = {name: (path, read[name]["labels"]) for name, path in zip(read, job.files("hits"), strict=True)}
    judge = Judge(ngrams, texts, verdicts, reach)
    counts, files = decide(job.folder, parts, ngrams, texts, common, judge)
    return {"read": read, "summary": {"evaluations": counts}, EVALUATION_PATHS: places_of(evaluations)}, files


@dataclass(frozen=True)
class DropContaminated(FinishedRunStage):
    """Drop the documents that have a span to cut in `folder`, the output of `pilekit decontaminate`.

    The folder of `--no-write` will do. PilekitError for a folder that is not finished; while running, for a shard that
    was not searched there.
    """

    kind, command, verb = KIND, COMMAND, "searched"

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The documents without a span to cut; empty batches are dropped."""
        spans_by_shard: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for batch in batches:
            if batch.shard not in spans_by_shard:
                self._check_shard(batch.shard)
                spans_by_shard[batch.shard] = dict(spans_of(Path(self.folder) / HITS, batch.shard))
            spans = spans_by_shard[batch.shard]
            for index, number in enumerate(batch.numbers.tolist()):
                if number in spans and index not in batch.edited and spans[number][-1][1] > len(batch.texts[index]):
                    raise self._another_shard(batch.shard, number)
            kept_batch = batch.where([number not in spans for number in batch.numbers.tolist()])
            if len(kept_batch):
                yield kept_batch
