"""Which n-grams of evaluations each document holds: found shard by shard, then judged and joined to spans.

Whether an n-gram is common is known when all shards have been read. So the hits of each shard are written to a file,
and `decide` reads them twice: to count documents, and to join the hits that are left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.parquet_rows import parquet_rows, required
from pilekit.corpus import Manifest, Shard
from pilekit.cutting.evaluation_texts import Record
from pilekit.cutting.ngrams import Hit, Int64, NGrams
from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.engine import Advance
from pilekit.pipeline.shard_job import skipped_lines
from pilekit.shards.read.reader import OnError, read

HITS, COMMON, EVALUATIONS, TOO_SHORT = "hits.parquet", "common.parquet", "evaluations.parquet", "too_short.parquet"

_TEXT, _INT = pa.string(), pa.int64()
_PART = required(number=_INT, subset=_TEXT, word=_INT, start=_INT, end=_INT, ngram=_INT, first=pa.bool_())
"""A hit; `first`: the document's first of this n-gram."""
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


class Texts:
    """The texts of evaluations whose n-grams are looked for, and those that are too short.

    records     (evaluation, number, id) of each record
    of          the index of each text's record
    fields      the field of each text
    too_short   rows of the table
    """

    def __init__(self) -> None:
        self.records: list[tuple[str, int, str | None]] = []
        self.of: list[int] = []
        self.fields: list[str] = []
        self.too_short: list[dict[str, Any]] = []

    def add(self, record: Record, words: Mapping[str, list[str]], least: int) -> list[list[str]]:
        """Take a record whose texts have these words; returns those that have enough."""
        self.records.append(record[:3])
        enough = []
        for field, found in words.items():
            if len(found) >= least:
                enough.append(found)
                self.of.append(len(self.records) - 1)
                self.fields.append(field)
            else:
                row = dict(zip(("evaluation", "record", "id"), record[:3], strict=True))
                self.too_short.append(row | {"field": field, "words": len(found), "text": record.texts[field]})
        return enough


def find_hits(
    shard: Shard,
    advance: Advance,
    *,
    path: Path,
    ngrams: Path,
    subsets: frozenset[str] | None,
    only: bool,
    manifest: Manifest,
    on_error: OnError,
    ahead: bool,
) -> dict[str, Any]:
    """Write the hits of a shard to the table at `path`; returns what was read.

    ngrams    the folder of the `NGrams`
    subsets   the subsets that are compared; None: all
    """
    known, counts = NGrams.load(ngrams), Counter[str]()
    chosen = sorted(subsets) if subsets is not None and only else None
    with ExitStack() as opened:
        reader = opened.enter_context(read(shard, chosen, on_error, manifest=manifest, advance=advance, ahead=ahead))
        rows = opened.enter_context(parquet_rows(path, _PART))
        for batch in reader:
            counts.update(batch.subsets)
            if len(counts) > MAX_SUBSETS:
                raise too_many_subsets(MAX_SUBSETS)
            compared = batch if subsets is None else batch.where([name in subsets for name in batch.subsets])
            for document, hits in groupby(known.find(compared), key=itemgetter(0)):
                for row in _rows(compared, document, list(hits)):
                    rows.add(row)
    return {"read": dict(counts), "hits": rows.count, **skipped_lines(reader)}


def _rows(batch: DocumentBatch, document: int, hits: Sequence[Hit]) -> Iterator[dict[str, Any]]:
    """The rows of a document's hits, by their first words."""
    data, offsets = batch.utf8()
    begins_character = (data[offsets[document] : offsets[document + 1]] & 0xC0) != 0x80
    places = sorted({place for hit in hits for place in (hit.begin, hit.end)} | {int(offsets[document])})
    characters, at = {places[0]: 0}, 0
    for before, place in pairwise(places):
        at += int(np.count_nonzero(begins_character[before - places[0] : place - places[0]]))
        characters[place] = at
    number, subset, met = int(batch.numbers[document]), batch.subsets[document], set[int]()
    for hit in sorted(hits, key=itemgetter(1)):
        start, end, first = characters[hit.begin], characters[hit.end], hit.ngram not in met
        met.add(hit.ngram)
        row = (number, subset, hit.word, start, end, hit.ngram, first)
        yield dict(zip(_PART.names, row, strict=True))


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as table:
        yield from table.iter_batches(1 << 14)


def _stored(path: Path) -> Iterator[dict[str, Any]]:
    """The hits that `find_hits` wrote."""
    for rows in _batches(path):
        yield from rows.to_pylist()


class _Places:
    """The texts that hold each of some n-grams."""

    def __init__(self, ngrams: NGrams, wanted: Any):
        places = np.flatnonzero(wanted[ngrams.of])
        self._ngrams = ngrams.of[places]
        order = np.argsort(self._ngrams, kind="stable")
        self._ngrams = self._ngrams[order]
        self._texts = np.searchsorted(ngrams.first, places[order], side="right") - 1

    def count(self, ngrams: Iterable[int]) -> Counter[int]:
        """How many of these n-grams each text holds."""
        counts = Counter[int]()
        for ngram in ngrams:
            begin, end = np.searchsorted(self._ngrams, [ngram, ngram + 1])
            counts.update(set(self._texts[begin:end].tolist()))
        return counts


def decide(
    folder: Path, parts: Sequence[tuple[str, Path]], ngrams: NGrams, texts: Texts, limit: int
) -> tuple[dict[str, Any], list[Path]]:
    """Write the four tables into `folder`; returns the counts of each evaluation, and the tables' paths.

    parts    the name of each shard, and its hits
    limit    n-grams in more documents are ignored; 0: none is
    """
    documents = np.zeros(len(ngrams.keys), np.int32)
    for _, part in parts:
        for hits in _batches(part):
            np.add.at(documents, hits["ngram"].filter(hits["first"]).to_numpy(), 1)
    counted = (documents > 0) & ((documents <= limit) | (limit == 0))
    with parquet_rows(folder / COMMON, _COMMON) as rows:
        ignored = np.flatnonzero((documents > 0) & ~counted)
        for ngram in ignored[np.argsort(-documents[ignored], kind="stable")].tolist():
            rows.add({"text": ngrams.text(ngram), "documents": int(documents[ngram])})
    places, first = _Places(ngrams, counted), dict[int, tuple[str, int]]()
    with parquet_rows(folder / HITS, _HITS) as rows:
        for shard, part in parts:
            left = (hit for hit in _stored(part) if counted[hit["ngram"]])
            for number, hits in groupby(left, key=itemgetter("number")):
                for span in _spans(hits, ngrams):
                    best: dict[int, tuple[int, int]] = {}
                    for text, held in sorted(places.count(span.pop("ngrams")).items()):
                        best[texts.of[text]] = max(best.get(texts.of[text], (0, 0)), (held, -text))
                    for record, (held, text) in best.items():
                        first.setdefault(record, (shard, number))
                        evaluation, of, _ = texts.records[record]
                        proof = {"evaluation": evaluation, "record": of, "field": texts.fields[-text], "ngrams": held}
                        rows.add({"shard": shard, "number": number, **span, **proof})
    with parquet_rows(folder / TOO_SHORT, _TOO_SHORT) as rows:
        for row in texts.too_short:
            rows.add(row)
    counts = _write_evaluations(folder / EVALUATIONS, ngrams, texts, counted, first)
    return counts, [folder / name for name in (HITS, COMMON, EVALUATIONS, TOO_SHORT)]


def _spans(hits: Iterable[Mapping[str, Any]], ngrams: NGrams) -> Iterator[dict[str, Any]]:
    """A document's hits, joined where they share a word or no word is between them."""
    spans: list[dict[str, Any]] = []
    first = last = 0
    for hit in hits:
        behind = hit["word"] + int(ngrams.words[hit["ngram"]])
        if spans and hit["word"] <= last:
            span = spans[-1]
        else:
            first, span = hit["word"], {"subset": hit["subset"], "start": hit["start"], "end": 0, "ngrams": set()}
            last = first
            spans.append(span)
        last, span["end"] = max(last, behind), max(span["end"], hit["end"])
        span["words"] = last - first
        span["ngrams"].add(hit["ngram"])
    yield from spans


def _write_evaluations(
    path: Path, ngrams: NGrams, texts: Texts, counted: Any, first: Mapping[int, tuple[str, int]]
) -> dict[str, Any]:
    """Write a row for each record; returns the counts of each evaluation."""
    begins: Int64 = np.searchsorted(np.array(texts.of, np.int64), np.arange(len(texts.records) + 1))
    counts: dict[str, Any] = defaultdict(lambda: {"records": 0, "dirty": 0, "too_short": 0})
    with parquet_rows(path, _EVALUATIONS) as rows:
        for index, (evaluation, number, id) in enumerate(texts.records):
            held = np.unique(ngrams.of[ngrams.first[begins[index]] : ngrams.first[begins[index + 1]]])
            found = int(np.count_nonzero(counted[held]))
            shard, document = first.get(index, (None, None))
            share = found / len(held) if len(held) else 0.0
            row = (evaluation, number, id, len(held), found, share, shard, document)
            rows.add(dict(zip(_EVALUATIONS.names, row, strict=True)))
            counts[evaluation]["records"] += 1
            counts[evaluation]["dirty"] += found > 0
            counts[evaluation]["too_short"] += not len(held)
    return dict(counts)
