"""Find the n-grams of evaluations in documents, shard by shard, then judge them and join them to spans.

Whether an n-gram is common is known when all shards have been read. So the hits of each shard are written to a file,
and `decide` reads them twice: to count documents, and to join the hits that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pilekit.artifacts.parquet_rows import parquet_rows, required
from pilekit.corpus import Shard
from pilekit.cutting.evaluation_texts import Record
from pilekit.cutting.ngrams import Hit, Int64, NGrams
from pilekit.cutting.words import normalised
from pilekit.documents import MAX_SUBSETS, DocumentBatch, too_many_subsets
from pilekit.engine import Advance
from pilekit.shards.read.reader import read

Flags = npt.NDArray[np.bool_]
Row = tuple[Any, ...]
HITS, COMMON, EVALUATIONS, TOO_SHORT = "hits.parquet", "common.parquet", "evaluations.parquet", "too_short.parquet"

_TEXT, _INT = pa.string(), pa.int64()
_PART = required(number=_INT, subset=_TEXT, word=_INT, start=_INT, end=_INT, ngram=_INT, first=pa.bool_())
"""A hit; `first`: the first of this n-gram in the document."""
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


class Texts(NamedTuple):
    """The texts of evaluations to search for, and those that are too short.

    records     (evaluation, number, id) of each record
    of          the index of each text's record
    fields      the field of each text
    too_short   rows of the table
    """

    records: list[tuple[str, int, str | None]]
    of: list[int]
    fields: list[str]
    too_short: list[Row]

    def words(self, records: Iterable[Record], least: int) -> Iterator[list[str]]:
        """Take in records; yield the words of each text that has enough."""
        for record in records:
            for field, text in record.texts.items():
                words = normalised(text)
                if len(words) >= least:
                    self.of.append(len(self.records))
                    self.fields.append(field)
                    yield words
                else:
                    self.too_short.append((*record[:3], field, len(words), text))
            self.records.append(record[:3])


def find_hits(
    shard: Shard, advance: Advance, *, path: Path, ngrams: Path, compared: Sequence[str] | None, **options: Any
) -> dict[str, Any]:
    """Write the hits of a shard to the table at `path`; returns counts.

    ngrams     the folder of the `NGrams`
    compared   the subsets to search; None: all that are read
    options    of `read`
    """
    known, counts = NGrams.load(ngrams), Counter[str]()

    def rows() -> Iterator[Row]:
        for batch in reader:
            counts.update(batch.subsets)
            if len(counts) > MAX_SUBSETS:
                raise too_many_subsets(MAX_SUBSETS)
            searched = batch if compared is None else batch.where([name in compared for name in batch.subsets])
            yield from _rows(searched, list(known.find(searched)))

    with read(shard, advance=advance, **options) as reader:
        _write(path, _PART, rows())
    return {"read": dict(counts), **reader.passed_over()}


def _write(path: Path, schema: pa.Schema, rows: Iterable[Row]) -> Path:
    with parquet_rows(path, schema) as table:
        for row in rows:
            table.add(dict(zip(schema.names, row, strict=True)))
    return path


def _rows(batch: DocumentBatch, hits: Sequence[Hit]) -> Iterator[Row]:
    """The rows of a batch's hits."""
    if not hits:
        return
    data, offsets = batch.utf8()
    documents, _, begins, ends, _ = np.array(hits).T
    places = np.unique(np.concatenate([offsets[documents], begins, ends]))
    begins_character = (data[places[0] : places[-1]] & 0xC0) != 0x80
    pieces = (begins_character[one:other] for one, other in pairwise((places - places[0]).tolist()))
    characters = np.cumsum([0, *map(np.count_nonzero, pieces)])
    origin, start, end = (characters[np.searchsorted(places, of)] for of in (offsets[documents], begins, ends))
    met = set[tuple[int, int]]()
    for hit, *place in zip(hits, (start - origin).tolist(), (end - origin).tolist(), strict=True):
        key = (hit.document, hit.ngram)
        yield int(batch.numbers[hit.document]), batch.subsets[hit.document], hit.word, *place, hit.ngram, key not in met
        met.add(key)


def decide(
    folder: Path, parts: Mapping[str, Path], ngrams: NGrams, texts: Texts, limit: int
) -> tuple[dict[str, Any], list[Path]]:
    """Write the four tables into `folder`; returns the counts of each evaluation, and the tables' paths.

    parts    the hits of each shard, by its name
    limit    n-grams in more documents are ignored; 0: ignore none
    """
    documents: Int64 = np.zeros(len(ngrams.keys), np.int64)
    for part in parts.values():
        for hits in _batches(part):
            np.add.at(documents, hits["ngram"].filter(hits["first"]).to_numpy(), 1)
    kept = (documents > 0) & ((documents <= limit) | (limit == 0))
    common = np.flatnonzero((documents > 0) & ~kept)
    common = common[np.argsort(-documents[common], kind="stable")]
    first, counts = dict[int, tuple[str, int]](), dict[str, dict[str, int]]()
    return counts, [
        _write(folder / HITS, _HITS, _found(parts, ngrams, texts, kept, first)),
        _write(folder / COMMON, _COMMON, ((ngrams.text(ngram), int(documents[ngram])) for ngram in common.tolist())),
        _write(folder / EVALUATIONS, _EVALUATIONS, _evaluations(ngrams, texts, kept, first, counts)),
        _write(folder / TOO_SHORT, _TOO_SHORT, texts.too_short),
    ]


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as table:
        yield from table.iter_batches(1 << 14)


def _found(
    parts: Mapping[str, Path], ngrams: NGrams, texts: Texts, kept: Flags, first: dict[int, tuple[str, int]]
) -> Iterator[Row]:
    """The rows of all spans; `first` receives each record's first document."""
    places = np.flatnonzero(kept[ngrams.of])
    places = places[np.argsort(ngrams.of[places], kind="stable")]
    held, holders = ngrams.of[places], np.searchsorted(ngrams.first, places, side="right") - 1
    for shard, part in parts.items():
        left = (hits.filter(pa.array(kept[hits["ngram"].to_numpy()])).to_pylist() for hits in _batches(part))
        for number, hits in groupby(chain.from_iterable(left), key=itemgetter("number")):
            for span in _spans(hits, ngrams):
                counts = Counter[int]()
                for ngram in span["ngrams"]:
                    begin, end = np.searchsorted(held, [ngram, ngram + 1])
                    counts.update(set(holders[begin:end].tolist()))
                # The text of a record with the most n-grams; among equals, the first.
                most = sorted(counts.items(), key=lambda item: (item[1], -item[0]))
                best = {texts.of[text]: (text, count) for text, count in most}
                place = (shard, number, span["subset"], span["start"], span["end"], span["behind"] - span["word"])
                for record, (text, count) in sorted(best.items()):
                    first.setdefault(record, (shard, number))
                    yield *place, *texts.records[record][:2], texts.fields[text], count


def _spans(hits: Iterable[Mapping[str, Any]], ngrams: NGrams) -> list[dict[str, Any]]:
    """A document's hits, joined if they overlap or no word is between them."""
    spans = list[dict[str, Any]]()
    for hit in hits:
        if not spans or hit["word"] > spans[-1]["behind"]:
            spans.append({**hit, "behind": 0, "ngrams": set()})
        span = spans[-1]
        span["behind"] = max(span["behind"], hit["word"] + int(ngrams.words[hit["ngram"]]))
        span["end"] = max(span["end"], hit["end"])
        span["ngrams"].add(hit["ngram"])
    return spans


def _evaluations(
    ngrams: NGrams, texts: Texts, kept: Flags, first: Mapping[int, tuple[str, int]], counts: dict[str, dict[str, int]]
) -> Iterator[Row]:
    """A row for each record; `counts` receives the counts of each evaluation."""
    begins = ngrams.first[np.searchsorted(texts.of, np.arange(len(texts.records) + 1))].tolist()
    for index, (record, (begin, end)) in enumerate(zip(texts.records, pairwise(begins), strict=True)):
        held = np.unique(ngrams.of[begin:end])
        found = int(np.count_nonzero(kept[held]))
        yield *record, len(held), found, found / max(1, len(held)), *first.get(index, (None, None))
        of_evaluation = counts.setdefault(record[0], {"records": 0, "dirty": 0, "too_short": 0})
        for name, more in (("records", True), ("dirty", found > 0), ("too_short", not len(held))):
            of_evaluation[name] += more
