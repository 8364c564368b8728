"""`TextTraces`: the result of `trace_texts`, and the rows of its Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from pilekit.cutting.words import word_places
from pilekit.display.fitted_table import DASH, MOST_ROWS, SHORTEN, Column, FittedTable, percentage
from pilekit.errors import counted
from pilekit.trace.maximal_passages import MaximalPassage, is_exact
from pilekit.trace.result_file import RowsResult

_INT, _TEXT = pa.int64(), pa.string()
_PLACE = pa.struct(
    {"shard": _TEXT, "number": _INT, "subset": _TEXT, "start": _INT, "end": _INT, "exact": pa.bool_()}
    | {"before": _TEXT, "text": _TEXT, "after": _TEXT}
)
_PASSAGE = pa.struct(
    {"start": _INT, "end": _INT, "words": _INT, "documents": _INT, "common": pa.bool_(), "places": pa.list_(_PLACE)}
)
SCHEMA = pa.schema(
    {"number": _INT, "words": _INT, "covered": _INT, "coverage": pa.float64(), "text": _TEXT}
    | {"passages": pa.list_(_PASSAGE)}
)
_ROWS_PER_GROUP = 128
"""A row group of the file is what a reader takes in to show one text."""


@dataclass(frozen=True, repr=False, eq=False)
class TextTraces(RowsResult):
    """The passages of given texts that also stand in a corpus, word for word.

    rows      a row per text: its `number` from 0, its `words`, the words `covered` by passages, their share `coverage`,
              the `text`, and `passages`, the longest first: `start` and `end` in the text's characters, `words`, the
              `documents` that have it, whether it is `common`, and `places` in the first documents: `shard`, `number`,
              `subset`, `start`, `end`, whether it is `exact`, and the words `before`, the `text` and the words `after`
    summary   the numbers of `texts` and of those `found` in part, their `words` and the words `covered`, `coverage`,
              `passages` and those that are `common`, the documents read, and of `others`, which are subsets that were
              not asked for; bad lines `skipped`; `subsets`: documents by subset
    skipped   the bad lines skipped
    """

    ROWS: ClassVar[tuple[str, str]] = ("number", "traces")
    SCHEMA, COMMAND, KIND = SCHEMA, "trace", "text traces"

    def to_dict(self) -> dict[str, Any]:
        """The summary, and as `traces` the rows."""
        return {**self.summary, "traces": self.rows.to_pylist()}

    def __getitem__(self, number: Any) -> dict[str, Any]:
        """The row of a text."""
        if number not in range(len(self.rows)):
            raise KeyError(f"there is no text {number!r}; they are numbered from 0")
        row: dict[str, Any] = self.rows.slice(number, 1).to_pylist()[0]
        return row

    def most_copied(self, count: int) -> list[dict[str, Any]]:
        """The rows of up to `count` texts that have passages, the one with the most covered words first."""
        columns = [batch["covered"].to_numpy() for batch in self.batches(_ROWS_PER_GROUP, ["covered"])]
        covered = np.concatenate([np.zeros(0, np.int64), *columns])
        numbers = np.argsort(-covered, kind="stable")[:count]
        return self.rows_at(numbers[covered[numbers] > 0].tolist(), _ROWS_PER_GROUP)

    def longest(self, count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Up to `count` passages, the longest first, each behind the row of its text."""
        texts, places, words, before = [], [], [np.zeros(0, np.int64)], 0
        for batch in self.batches(_ROWS_PER_GROUP, ["passages"]):
            sizes = batch["passages"].value_lengths().to_numpy()
            texts.append(before + np.repeat(np.arange(len(batch)), sizes))
            places.append(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes))
            words.append(batch["passages"].flatten().field("words").to_numpy())
            before += len(batch)
        order = np.argsort(-np.concatenate(words), kind="stable")[:count]
        if not len(order):
            return []
        numbers = np.concatenate(texts)[order].tolist()
        rows = zip(self.rows_at(numbers, _ROWS_PER_GROUP), np.concatenate(places)[order].tolist(), strict=True)
        return [(row, row["passages"][place]) for row, place in rows]

    def table(self) -> FittedTable[int]:
        """A row per passage, the longest first."""
        shown = self.longest(MOST_ROWS)

        def of_passage(title: str, cell: Callable[[dict[str, Any]], str], **look: Any) -> Column[int]:
            return Column(title, lambda place: cell(shown[place][1]), **look)

        def documents(passage: dict[str, Any]) -> str:
            return f"{passage['documents']:,}"

        def text(place: int) -> str:
            row, passage = shown[place]
            passage_text: str = row["text"][passage["start"] : passage["end"]]
            return passage_text

        columns = [
            Column[int]("Passage", text),
            Column("Text", lambda place: f"{shown[place][0]['number']:,}"),
            of_passage("Words", lambda passage: f"{passage['words']:,}"),
            of_passage("Documents", documents, short=of_passage("Docs", documents)),
            of_passage("Exact", is_exact_first, justify="left"),
            of_passage("First in", first_place, justify="left"),
        ]
        summary = self.summary
        share = f"{percentage(summary['coverage'])} % of {counted(summary['words'], 'word')} stand in passages"
        texts_found = f"{summary['found']:,} of {counted(summary['texts'], 'text')}"
        notes = [f"{share}, in {texts_found}; searched {counted(summary['documents'])}"]
        return FittedTable(range(summary["passages"]), columns, priority=(SHORTEN, "Exact", "First in"), notes=notes)


def is_exact_first(passage: Mapping[str, Any]) -> str:
    """Whether the first document has a passage of a row exactly: yes, no, or a dash for a common passage."""
    places = passage["places"]
    return DASH if not places else "yes" if places[0]["exact"] else "no"


def first_place(passage: Mapping[str, Any]) -> str:
    """The first document that has a passage of a row, or a dash for a common passage."""
    places = passage["places"]
    return f"{places[0]['shard']} {places[0]['number']}" if places else DASH


def trace_rows(
    texts: Sequence[str], words: Sequence[int], passages: Iterator[Sequence[MaximalPassage]], common: int
) -> Iterator[pa.RecordBatch]:
    """The rows of texts of so many words, each with its passages in order.

    common   passages in more documents are listed without places; 0: none
    """
    for begin in range(0, len(texts), _ROWS_PER_GROUP):
        numbers = range(begin, min(begin + _ROWS_PER_GROUP, len(texts)))
        rows = [_row(number, texts[number], words[number], next(passages), common) for number in numbers]
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def _row(number: int, text: str, words: int, passages: Sequence[MaximalPassage], common: int) -> dict[str, Any]:
    begins, ends, _ = word_places([text], words) if passages else ((), (), ())
    listed = list[dict[str, Any]]()
    for passage in passages:
        start, end = int(begins[passage.begin]), int(ends[passage.end - 1])
        is_common = passage.documents > common > 0
        places = [
            {"shard": shard, "exact": is_exact(text[start:end], place.text), **msgspec.structs.asdict(place)}
            for shard, place in passage.places
        ]
        counts = {"words": passage.end - passage.begin, "documents": passage.documents, "common": is_common}
        listed.append({"start": start, "end": end, **counts, "places": places})
    listed.sort(key=lambda passage: -passage["words"])
    covered = sum(passage.new for passage in passages)
    shown = {"number": number, "words": words, "covered": covered, "coverage": covered / words if words else 0.0}
    return {**shown, "text": text, "passages": listed}
