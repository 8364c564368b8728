"""Find the n-grams of evaluations in documents, shard by shard, then judge them and join them to spans.

Common n-grams are known only after all shards have been read. So the hits of each shard are written to a file,
and `decide` reads them twice: to count documents, and to join the hits that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.parquet_rows import required, write_rows
from pilekit.corpus import Shard
from pilekit.cutting.evaluation_texts import Texts
from pilekit.cutting.ngrams import NGrams
from pilekit.cutting.shards import CutScope, stored_rows
from pilekit.cutting.words import Int64, characters_before
from pilekit.shards.corpus_job import Share
from pilekit.workers import Advance

Flags = npt.NDArray[np.bool_]
Row = tuple[Any, ...]
Part = tuple[Path, Sequence[str]]
"""The file of a shard's hits, and its labels."""
HITS, COMMON, EVALUATIONS, TOO_SHORT = "hits.parquet", "common.parquet", "evaluations.parquet", "too_short.parquet"

NUMBER, SUBSET, WORD, START, END, NGRAM, FIRST = range(7)
"""Columns of the hits of a shard, int64. SUBSET: an index of the shard's labels; FIRST: 1 for the first hit of this
n-gram in the document."""

_TEXT, _INT = pa.string(), pa.int64()
_HITS = required(
    **{"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT, "words": _INT},
    **{"evaluation": _TEXT, "record": _INT, "field": _TEXT, "ngrams": _INT},
)
_COMMON = required(text=_TEXT, documents=_INT)
_EVALUATIONS = pa.schema(
    {"evaluation": _TEXT, "record": _INT, "id": _TEXT, "ngrams": _INT, "found": _INT, "share": pa.float64()}
    | {"first_shard": _TEXT, "first_number": _INT}
)
_TOO_SHORT = pa.schema({"evaluation": _TEXT, "record": _INT, "id": _TEXT, "field": _TEXT, "words": _INT, "text": _TEXT})


def find_hits(
    shard: Shard, advance: Advance, *, path: Path, ngram_folder: Path, scope: CutScope, share: Share
) -> tuple[dict[str, Any], list[Path]]:
    """Write the hits of a shard to the file at `path`; `ngram_folder` has the `NGrams`."""
    ngrams, counts, labels = NGrams.load(ngram_folder), dict[str, Any](), dict[str, int]()
    with write_atomically(path) as file:
        for read_batch in scope.batches(shard, advance, counts, ahead=share.ahead):
            batch = scope.compared(read_batch)
            documents, word, begin, end, ngram = (hits := ngrams.find(batch)).T
            if not len(hits):
                continue
            data, offsets = batch.utf8()
            places, inverse = np.unique(np.concatenate([offsets[documents], begin, end]), return_inverse=True)
            origin, start, stop = characters_before(data, places)[inverse].reshape(3, -1)
            first = np.zeros(len(hits), np.int64)
            # The product numbers the pairs of a document and an n-gram.
            first[np.unique(documents * len(ngrams.keys) + ngram, return_index=True)[1]] = 1
            subsets = [labels.setdefault(batch.subsets[document], len(labels)) for document in documents.tolist()]
            columns = (batch.numbers[documents], subsets, word, start - origin, stop - origin, ngram, first)
            file.write(np.stack(columns, axis=1).data)
    return {**counts, "labels": list(labels)}, [path]


def decide(
    folder: Path, parts: Mapping[str, Part], ngrams: NGrams, texts: Texts, limit: int
) -> tuple[dict[str, Any], list[Path]]:
    """Write the four tables into `folder`; returns the counts of each evaluation, and the tables' paths.

    parts    the hits of each shard, by its name
    limit    n-grams in more documents are ignored; 0: ignore none
    """
    documents: Int64 = np.zeros(len(ngrams.keys), np.int64)
    for path, _ in parts.values():
        for hits in _stored(path):
            np.add.at(documents, hits[hits[:, FIRST] == 1, NGRAM], 1)
    is_kept = (documents > 0) & ((documents <= limit) | (limit == 0))
    common = np.flatnonzero((documents > 0) & ~is_kept)
    common = common[np.argsort(-documents[common], kind="stable")].tolist()
    first, counts = dict[int, tuple[str, int]](), dict[str, dict[str, int]]()
    return counts, [
        write_rows(folder / HITS, _HITS, _hit_rows(parts, ngrams, texts, is_kept, first)),
        write_rows(folder / COMMON, _COMMON, ((ngrams.text(ngram), int(documents[ngram])) for ngram in common)),
        write_rows(folder / EVALUATIONS, _EVALUATIONS, _evaluation_rows(ngrams, texts, is_kept, first, counts)),
        write_rows(folder / TOO_SHORT, _TOO_SHORT, texts.too_short),
    ]


def _stored(path: Path) -> Iterator[Int64]:
    return (rows.view(np.int64) for rows in stored_rows(path, FIRST + 1))


def _spans(path: Path, ngrams: NGrams, is_kept: Flags) -> Iterator[tuple[list[int], set[int]]]:
    """A shard's kept hits, joined if they overlap or no word is between them: the first hit and the n-grams of each.

    The hit's END is that of the span, and it has a column more: the number of the word behind the span.
    """
    rows = chain.from_iterable(hits[is_kept[hits[:, NGRAM]]].tolist() for hits in _stored(path))
    for _, hits in groupby(rows, key=itemgetter(NUMBER)):
        spans = list[tuple[list[int], set[int]]]()
        for hit in hits:
            if not spans or hit[WORD] > spans[-1][0][-1]:
                spans.append(([*hit, 0], set()))
            span, span_ngrams = spans[-1]
            span[-1] = max(span[-1], hit[WORD] + int(ngrams.words[hit[NGRAM]]))
            span[END] = max(span[END], hit[END])
            span_ngrams.add(hit[NGRAM])
        yield from spans


def _hit_rows(
    parts: Mapping[str, Part], ngrams: NGrams, texts: Texts, is_kept: Flags, first: dict[int, tuple[str, int]]
) -> Iterator[Row]:
    """The rows of all spans; `first` receives each record's first document."""
    # Pairs of an n-gram and a text that has it, sorted, each pair once.
    places = np.flatnonzero(is_kept[ngrams.numbers])
    places = places[np.argsort(ngrams.numbers[places], kind="stable")]
    numbers, text_of = ngrams.numbers[places].astype(np.int64), np.searchsorted(ngrams.first, places, "right") - 1
    once = np.append(True, (np.diff(numbers) != 0) | (np.diff(text_of) != 0))[: len(numbers)]
    numbers, text_of = numbers[once], text_of[once]
    spans = ((shard, *part, span) for shard, part in parts.items() for span in _spans(part[0], ngrams, is_kept))
    for shard, _, labels, (span, span_ngrams) in spans:
        sorted_ngrams = sorted(span_ngrams)
        begins, ends = (np.searchsorted(numbers, sorted_ngrams, side).tolist() for side in ("left", "right"))
        counts = Counter(chain.from_iterable(text_of[slice(*pair)].tolist() for pair in zip(begins, ends, strict=True)))
        # The text of a record with the most n-grams; among equals, the first.
        most = sorted(counts.items(), key=lambda item: (item[1], -item[0]))
        best = {texts.record_of[text]: (text, count) for text, count in most}
        place = (shard, span[NUMBER], labels[span[SUBSET]], span[START], span[END], span[-1] - span[WORD])
        for record, (text, count) in sorted(best.items()):
            first.setdefault(record, (shard, span[NUMBER]))
            yield *place, *texts.records[record][:2], texts.fields[text], count


def _evaluation_rows(
    ngrams: NGrams,
    texts: Texts,
    is_kept: Flags,
    first: Mapping[int, tuple[str, int]],
    counts: dict[str, dict[str, int]],
) -> Iterator[Row]:
    """A row for each record; `counts` receives the counts of each evaluation."""
    begins = ngrams.first[np.searchsorted(texts.record_of, np.arange(len(texts.records) + 1))].tolist()
    for index, (record, (begin, end)) in enumerate(zip(texts.records, pairwise(begins), strict=True)):
        # With counts, `np.unique` sorts, which is faster here.
        numbers, _ = np.unique(ngrams.numbers[begin:end], return_counts=True)
        matches = int(np.count_nonzero(is_kept[numbers]))
        yield *record, len(numbers), matches, matches / max(1, len(numbers)), *first.get(index, (None, None))
        of_evaluation = counts.setdefault(record[0], {"records": 0, "dirty": 0, "too_short": 0})
        for name, more in (("records", True), ("dirty", matches > 0), ("too_short", not len(numbers))):
            of_evaluation[name] += more
