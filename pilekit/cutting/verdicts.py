"""Judge the hits of all shards: ignore common n-grams, join the others to spans, and give each span its verdicts.

A span and a record that shares n-grams with it are a row of `hits.parquet`. Its verdict is

    leak       the span has an n-gram of the record's question, and the record's answer is in reach
    question   it has an n-gram of the question, but the answer is not in reach, or not known
    text       it has other text of the record only, or no record of the evaluation has an answer

Spans are cut that have a verdict which is to be cut.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pilekit.artifacts.parquet_rows import required, write_rows
from pilekit.cutting.answers import Place, in_reach
from pilekit.cutting.evaluation_texts import Texts
from pilekit.cutting.hits import END, FIRST, NGRAM, NUMBER, START, SUBSET, WORD, stored_hits
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.words import Flags, Int64, UInt32
from pilekit.workers.kernels import compiled

Verdict = Literal["leak", "question", "text"]
Row = tuple[Any, ...]
Part = tuple[Path, Sequence[str]]
"""The file of a shard's hits, and its labels."""
VERDICTS: tuple[Verdict, ...] = ("leak", "question", "text")
"""The worst first."""
HITS, COMMON, EVALUATIONS, TOO_SHORT = "hits.parquet", "common.parquet", "evaluations.parquet", "too_short.parquet"

_TEXT, _INT = pa.string(), pa.int64()
_HITS = required(
    **{"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT, "words": _INT},
    **{"evaluation": _TEXT, "record": _INT, "field": _TEXT, "ngrams": _INT, "verdict": _TEXT, "cut": pa.bool_()},
)
_COMMON = required(text=_TEXT, documents=_INT)
_EVALUATIONS = pa.schema(
    {"evaluation": _TEXT, "record": _INT, "id": _TEXT, "ngrams": _INT, "found": _INT, "share": pa.float64()}
    | {"first_shard": _TEXT, "first_number": _INT, "verdict": _TEXT}
)
_TOO_SHORT = pa.schema({"evaluation": _TEXT, "record": _INT, "id": _TEXT, "field": _TEXT, "words": _INT, "text": _TEXT})


class Judge:
    """Gives a record's text in a span its verdict, and says whether this is cut.

    cut     the verdicts that are cut; None: leak and question, and text of evaluations in which no record has an answer
    reach   how far from its question an answer may be, in characters
    """

    def __init__(self, ngrams: NGrams, texts: Texts, cut: Collection[Verdict] | None, reach: int):
        self._ngrams, self._texts, self._cut, self._reach = ngrams, texts, cut, reach
        question = texts.record_fields.question
        fields = zip(texts.record_of, texts.fields, strict=True)
        self._question_of = {record: text for text, (record, name) in enumerate(fields) if name == question}
        answered = zip(texts.records, texts.answers, strict=True)
        self.with_secret = {record[0] for record, answers in answered if answers}
        """The evaluations that have a secret."""

    def verdict(self, record: int, shared: Collection[int], span: _Span) -> Verdict:
        """The verdict on a span and a record; `shared` has the texts that share n-grams with the span."""
        question = self._question_of.get(record)
        if question is None or question not in shared or self._texts.records[record][0] not in self.with_secret:
            return "text"
        if record not in span.answers:
            return "question"
        begin, end = self._ngrams.first[question : question + 2]
        numbers = self._ngrams.numbers[begin:end].tolist()
        places = [span.ngrams[ngram] for ngram in numbers if ngram in span.ngrams]
        place = min(start for start, _ in places), max(end for _, end in places)
        around = span.hit[START], span.hit[END]
        least, most = min(place[0] - self._reach, around[0]), max(place[1] + self._reach, around[1])
        # A document may hold a question and its answer thousands of times.
        answers = span.answers[record]
        begin, end = bisect_left(answers, least, key=itemgetter(0)), bisect(answers, most, key=itemgetter(0))
        is_leak = in_reach(answers[begin:end], place, around, self._reach)
        return "leak" if is_leak else "question"

    def cuts(self, verdict: Verdict, evaluation: str) -> bool:
        """Whether text of an evaluation with this verdict is cut."""
        if self._cut is None:
            return verdict != "text" or evaluation not in self.with_secret
        return verdict in self._cut


class _Span(NamedTuple):
    """Hits that overlap or have no word between them.

    hit       the first hit, whose END is that of the span, and the number of the word behind the span
    ngrams    the start of the first and the end of the last hit of each n-gram
    answers   the places of the records' answers in the document, ascending
    """

    hit: list[int]
    ngrams: dict[int, Place]
    answers: Mapping[int, list[Place]]


@dataclass(frozen=True)
class _Findings:
    """What the spans say about records, by the record's index, and about evaluations.

    first    the first document of each record
    worst    the worst verdict on each record, as an index of `VERDICTS`
    counts   the verdicts of each evaluation by subset
    """

    first: dict[int, tuple[str, int]] = field(default_factory=dict)
    worst: dict[int, int] = field(default_factory=dict)
    counts: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )


def decide(
    folder: Path, parts: Mapping[str, Part], ngrams: NGrams, texts: Texts, limit: int, judge: Judge
) -> tuple[dict[str, Any], list[Path]]:
    """Write the four tables into `folder`; returns the counts of each evaluation, and the tables' paths.

    parts    the hits of each shard, by its name
    limit    n-grams in more documents are ignored; 0: ignore none
    """
    documents: Int64 = np.zeros(len(ngrams.keys), np.int64)
    for path, _ in parts.values():
        for hits in stored_hits(path):
            np.add.at(documents, hits[hits[:, FIRST] == 1, NGRAM], 1)
    is_kept = (documents > 0) & ((documents <= limit) | (limit == 0))
    common = np.flatnonzero((documents > 0) & ~is_kept)
    common = common[np.argsort(-documents[common], kind="stable")].tolist()
    findings, counts = _Findings(), dict[str, dict[str, Any]]()
    return counts, [
        write_rows(folder / HITS, _HITS, _hit_rows(parts, ngrams, texts, is_kept, judge, findings)),
        write_rows(folder / COMMON, _COMMON, ((ngrams.text(ngram), int(documents[ngram])) for ngram in common)),
        write_rows(folder / EVALUATIONS, _EVALUATIONS, _evaluation_rows(ngrams, texts, is_kept, findings, counts)),
        write_rows(folder / TOO_SHORT, _TOO_SHORT, texts.too_short),
    ]


def _spans(path: Path, ngrams: NGrams, is_kept: Flags) -> Iterator[_Span]:
    """The spans of a shard's kept hits."""
    # The place behind the last n-gram stands for the answers, whose number is -1.
    is_used = np.append(is_kept, True)
    rows = chain.from_iterable(hits[is_used[hits[:, NGRAM]]].tolist() for hits in stored_hits(path))
    for _, hits in groupby(rows, key=itemgetter(NUMBER)):
        spans, answers = list[_Span](), defaultdict[int, list[Place]](list)
        for hit in hits:
            if hit[NGRAM] < 0:
                answers[hit[WORD]].append((hit[START], hit[END]))
                continue
            if not spans or hit[WORD] > spans[-1].hit[-1]:
                spans.append(_Span([*hit, 0], {}, answers))
            span = spans[-1].hit
            span[-1] = max(span[-1], hit[WORD] + int(ngrams.words[hit[NGRAM]]))
            span[END] = max(span[END], hit[END])
            start, _ = spans[-1].ngrams.get(hit[NGRAM], (hit[START], 0))
            spans[-1].ngrams[hit[NGRAM]] = start, hit[END]
        for places in answers.values():
            places.sort()
        yield from spans


def _hit_rows(
    parts: Mapping[str, Part], ngrams: NGrams, texts: Texts, is_kept: Flags, judge: Judge, findings: _Findings
) -> Iterator[Row]:
    """The rows of all spans; `findings` receives what they say."""
    # Pairs of an n-gram and a text that has it, sorted, each pair once.
    places = np.flatnonzero(is_kept[ngrams.numbers])
    places = places[np.argsort(ngrams.numbers[places], kind="stable")]
    numbers, text_of = ngrams.numbers[places].astype(np.int64), np.searchsorted(ngrams.first, places, "right") - 1
    once = np.append(True, (np.diff(numbers) != 0) | (np.diff(text_of) != 0))[: len(numbers)]
    numbers, text_of = numbers[once], text_of[once]
    spans = ((shard, labels, span) for shard, (path, labels) in parts.items() for span in _spans(path, ngrams, is_kept))
    for shard, labels, span in spans:
        hit, in_span = span.hit, np.array([*span.ngrams])
        pairs = np.searchsorted(numbers, (in_span, in_span + 1)).T.tolist()
        counts = Counter(chain.from_iterable(text_of[begin:end].tolist() for begin, end in pairs))
        # The text of a record with the most n-grams; among equals, the first.
        most = sorted(counts.items(), key=lambda item: (item[1], -item[0]))
        best = {texts.record_of[text]: (text, count) for text, count in most}
        subset = labels[hit[SUBSET]]
        place = (shard, hit[NUMBER], subset, hit[START], hit[END], hit[-1] - hit[WORD])
        for record, (text, count) in sorted(best.items()):
            evaluation, number, _ = texts.records[record]
            verdict = judge.verdict(record, counts, span)
            rank = VERDICTS.index(verdict)
            findings.first.setdefault(record, (shard, hit[NUMBER]))
            findings.worst[record] = min(rank, findings.worst.get(record, rank))
            findings.counts[evaluation][subset][verdict] += 1
            yield *place, evaluation, number, texts.fields[text], count, verdict, judge.cuts(verdict, evaluation)


def _evaluation_rows(
    ngrams: NGrams, texts: Texts, is_kept: Flags, findings: _Findings, counts: dict[str, dict[str, Any]]
) -> Iterator[Row]:
    """A row for each record; `counts` receives the counts of each evaluation."""
    begins = ngrams.first[np.searchsorted(texts.record_of, np.arange(len(texts.records) + 1))]
    sizes, kept = np.zeros((2, len(texts.records)), np.int64)
    _count_different(ngrams.numbers, begins, is_kept, np.zeros(len(is_kept), np.uint32), sizes, kept)
    rows = zip(texts.records, sizes.tolist(), kept.tolist(), strict=True)
    for index, (record, size, matches) in enumerate(rows):
        verdict = VERDICTS[findings.worst[index]] if index in findings.worst else None
        place = findings.first.get(index, (None, None))
        yield *record, size, matches, matches / max(1, size), *place, verdict
        if record[0] not in counts:
            subsets = {
                subset: {name: verdicts[name] for name in VERDICTS}
                for subset, verdicts in findings.counts[record[0]].items()
            }
            names = ("records", "dirty", "too_short", "answered", *VERDICTS)
            counts[record[0]] = {**dict.fromkeys(names, 0), "subsets": subsets}
        of_evaluation = counts[record[0]]
        for name, more in (("records", True), ("dirty", matches > 0), ("too_short", not size)):
            of_evaluation[name] += more
        of_evaluation["answered"] += bool(texts.answers[index])
        if verdict is not None:
            of_evaluation[verdict] += 1


@compiled()
def _count_different(numbers: UInt32, begins: Int64, is_kept: Flags, last: UInt32, sizes: Int64, kept: Int64) -> None:
    """Count the different n-grams of each record, and those that are kept.

    numbers, begins   the n-grams of all records, and the first of each record
    last              zeros, one for each n-gram, overwritten
    sizes, kept       zeros, one for each record, written
    """
    for record in range(len(sizes)):
        for number in numbers[begins[record] : begins[record + 1]]:
            if last[number] <= record:
                last[number] = np.uint32(record + 1)
                sizes[record] += 1
                kept[record] += int(is_kept[number])
