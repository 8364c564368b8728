"""`TextTraces`: the result of `trace_texts`, and the rows of its Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, percentage
from pilekit.errors import counted
from pilekit.trace.given_texts import word_places
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
_ROWS_AT_A_TIME = 1024
_Traced = tuple[dict[str, Any], dict[str, Any]]
"""A row, and one of its passages."""


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

    def _rows(self) -> Mapping[Any, Any]:
        return dict(enumerate(self.rows.to_pylist()))

    def table(self) -> FittedTable[_Traced]:
        """A row per passage: those of the first text come first."""
        passages = [(row, passage) for row in self.rows.to_pylist() for passage in row["passages"]]
        columns = [
            Column[_Traced]("Passage", lambda row: row[0]["text"][row[1]["start"] : row[1]["end"]]),
            Column("Text", lambda row: f"{row[0]['number']:,}"),
            Column("Words", lambda row: f"{row[1]['words']:,}"),
            Column("Documents", _documents, Column("Docs", _documents)),
            Column(
                "Exact", lambda row: _of_first(row, lambda place: "yes" if place["exact"] else "no"), justify="left"
            ),
            Column("First in", lambda row: _of_first(row, lambda at: f"{at['shard']} {at['number']}"), justify="left"),
        ]
        summary = self.summary
        share = f"{percentage(summary['coverage'])} % of {counted(summary['words'], 'word')} stand in passages"
        texts = f"{summary['found']:,} of {counted(summary['texts'], 'text')}"
        notes = [f"{share}, in {texts}; searched {counted(summary['documents'])}"]
        return FittedTable(passages, columns, priority=(SHORTEN, "Exact", "First in"), notes=notes)


def _documents(row: _Traced) -> str:
    return f"{row[1]['documents']:,}"


def _of_first(row: _Traced, shown: Callable[[dict[str, Any]], str]) -> str:
    places = row[1]["places"]
    return shown(places[0]) if places else DASH


def covered_words(passages: Sequence[MaximalPassage]) -> int:
    """The words of a text that stand in its passages, which are in order."""
    covered, before = 0, 0
    for passage in passages:
        covered += passage.end - max(before, passage.begin)
        before = passage.end
    return covered


def trace_rows(
    texts: Sequence[str], words: Sequence[int], passages: Mapping[int, Sequence[MaximalPassage]], common: int
) -> Iterator[pa.RecordBatch]:
    """The rows of texts of so many words, each with its passages in order.

    common   passages in more documents are listed without places; 0: none
    """
    for begin in range(0, len(texts), _ROWS_AT_A_TIME):
        numbers = range(begin, min(begin + _ROWS_AT_A_TIME, len(texts)))
        rows = [_row(number, texts[number], words[number], passages.get(number, ()), common) for number in numbers]
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def _row(number: int, text: str, words: int, passages: Sequence[MaximalPassage], common: int) -> dict[str, Any]:
    begins, ends = word_places(text, words) if passages else ((), ())
    listed = list[dict[str, Any]]()
    for passage in passages:
        start, end = int(begins[passage.begin]), int(ends[passage.end - 1])
        is_common = passage.documents > common > 0
        places = [
            {"shard": shard, "exact": is_exact(text[start:end], place.text), **msgspec.structs.asdict(place)}
            for shard, place in (() if is_common else passage.places)
        ]
        counts = {"words": passage.end - passage.begin, "documents": passage.documents, "common": is_common}
        listed.append({"start": start, "end": end, **counts, "places": places})
    listed.sort(key=lambda passage: -passage["words"])
    covered = covered_words(passages)
    shown = {"number": number, "words": words, "covered": covered, "coverage": covered / words if words else 0.0}
    return {**shown, "text": text, "passages": listed}
