"""`PhraseCounts`: the result of `count_phrases`, and the Parquet file that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from pilekit.artifacts.parquet_rows import ROWS_PER_GROUP
from pilekit.display.fitted_table import DASH, MOST_ROWS, SHORTEN, Column, FittedTable, rounded_count
from pilekit.errors import counted
from pilekit.trace.phrase_kernel import Int32, Int64
from pilekit.trace.phrases import Phrases
from pilekit.trace.result_file import RowsResult

Sort = Literal["count", "given"]

_IN_SUBSET = pa.struct({"subset": pa.string(), "occurrences": pa.int64(), "documents": pa.int64()})
SCHEMA = pa.schema(
    {"phrase": pa.string(), "occurrences": pa.int64(), "documents": pa.int64(), "subsets": pa.list_(_IN_SUBSET)}
)


@dataclass(frozen=True, repr=False, eq=False)
class PhraseCounts(RowsResult):
    """How often phrases occur in a corpus, and in how many documents.

    rows      a row per phrase: `phrase`, `occurrences`, `documents`, and `subsets`, a list of `subset`, `occurrences`
              and `documents`, of the subset with the most occurrences first; the columns of the Parquet file
    summary   the numbers of `phrases` and of those `found`, `duplicates` that were given again, documents read, and of
              `others`, which are subsets that were not asked for; bad lines `skipped`; `subsets`: documents by subset
    skipped   the bad lines skipped
    """

    ROWS: ClassVar[tuple[str, str]] = ("phrase", "counts")
    SCHEMA, COMMAND, KIND = SCHEMA, "count", "phrase counts"

    def to_dict(self) -> dict[str, Any]:
        """The summary, and as `counts` the `occurrences`, `documents` and `subsets` of each phrase."""
        return {**self.summary, "counts": self._rows()}

    def most_frequent(self, count: int) -> list[dict[str, Any]]:
        """The rows of up to `count` phrases, the most frequent first."""
        return self.rows_at(np.argsort(-self.occurrences(), kind="stable")[:count].tolist())

    def occurrences(self) -> Int64:
        """The occurrences of each phrase, in the order of the rows."""
        columns = [batch["occurrences"].to_numpy() for batch in self.batches(ROWS_PER_GROUP, ["occurrences"])]
        return np.concatenate([np.zeros(0, np.int64), *columns])

    def _rows(self) -> dict[str, Any]:
        return {row.pop("phrase"): {**row, "subsets": _by_subset(row["subsets"])} for row in self.rows.to_pylist()}

    def table(self) -> FittedTable[int]:
        """A row per phrase."""
        rows, summary = self.first_rows(MOST_ROWS), self.summary

        def cell(row: int, name: str) -> Any:
            return rows[name][row].as_py()

        def most_in(row: int) -> str:
            in_subsets = cell(row, "subsets")
            return in_subsets[0]["subset"] if in_subsets else DASH

        columns = [
            Column[int]("Phrase", lambda row: cell(row, "phrase")),
            _count("Occurrences", "Occur", lambda row: cell(row, "occurrences")),
            _count("Documents", "Docs", lambda row: cell(row, "documents")),
            Column("Most in", most_in, justify="left"),
        ]
        searched = f"{summary['found']:,} of {counted(summary['phrases'], 'phrase')} found"
        notes = [f"{searched} in {counted(summary['documents'])}"]
        return FittedTable(range(summary["phrases"]), columns, priority=("Most in", SHORTEN), notes=notes)


def _count(title: str, short: str, number: Any) -> Column[int]:
    return Column(title, lambda row: f"{number(row):,}", Column(short, lambda row: rounded_count(number(row))))


def _by_subset(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    return {row.pop("subset"): row for row in rows}


@dataclass(frozen=True)
class ShardCounts:
    """The counts of a shard, which `SubsetCounts.rows` made. There may be more shards than files may be open.

    path      a file of the rows
    labels    the subsets of the shard
    """

    path: Path
    labels: Sequence[str]

    def columns(self) -> tuple[Int64, Int64, Int64]:
        """The phrase's number << 16 | an index of `labels`, ascending; occurrences; documents; mapped into memory."""
        keys, occurrences, documents = np.load(self.path, mmap_mode="r").view(np.ndarray)
        return keys, occurrences, documents


def totals(shards: Sequence[ShardCounts], phrases: int) -> Int64:
    """Occurrences and documents of each phrase in all subsets, int64 [2, phrases]."""
    sums = np.zeros((2, phrases), np.int64)
    for shard in shards:
        keys, occurrences, documents = shard.columns()
        for begin in range(0, len(keys), ROWS_PER_GROUP):
            part = slice(begin, begin + ROWS_PER_GROUP)
            numbers = keys[part] >> 16
            np.add.at(sums[0], numbers, occurrences[part])
            np.add.at(sums[1], numbers, documents[part])
    return sums


def count_rows(
    shards: Sequence[ShardCounts], phrases: Phrases, numbers: Int32, sums: Int64, at_a_time: int = ROWS_PER_GROUP
) -> Iterator[pa.RecordBatch]:
    """The rows of the phrases of these numbers, which `totals` has the sums of, in this order."""
    labels = sorted({label for shard in shards for label in shard.labels})
    names = pa.array(labels, pa.string())
    for begin in range(0, len(numbers), at_a_time):
        chosen = numbers[begin : begin + at_a_time].astype(np.int64)
        place, label, occurrences, documents = _in_subsets(shards, chosen, {name: i for i, name in enumerate(labels)})
        order = np.lexsort((label, -occurrences, place))
        columns = [names.take(pa.array(label[order])), pa.array(occurrences[order]), pa.array(documents[order])]
        ends = np.append(0, np.cumsum(np.bincount(place, minlength=len(chosen)))).astype(np.int32)
        subsets = pa.StructArray.from_arrays(columns, fields=list(_IN_SUBSET))
        texts = pa.array(phrases.texts(chosen.tolist()), pa.string())
        in_subsets = pa.ListArray.from_arrays(pa.array(ends), subsets)
        yield pa.RecordBatch.from_arrays([texts, *(pa.array(row[chosen]) for row in sums), in_subsets], schema=SCHEMA)


def _in_subsets(
    shards: Sequence[ShardCounts], numbers: Int64, code: Mapping[str, int]
) -> tuple[Int64, Int64, Int64, Int64]:
    """The pairs of these phrases and subsets: the place in `numbers`, the subset's code, occurrences, documents."""
    keys, counts = [np.zeros(0, np.int64)], [np.zeros((2, 0), np.int64)]
    for shard in shards:
        of_shard, occurrences, documents = shard.columns()
        begin, end = (np.searchsorted(of_shard, bound << 16) for bound in (numbers, numbers + 1))
        size = end - begin
        at = np.repeat(begin - np.cumsum(size) + size, size) + np.arange(int(size.sum()))
        codes = np.array([code[label] for label in shard.labels], np.int64)
        keys.append(np.repeat(np.arange(len(numbers)), size) * len(code) + codes[of_shard[at] & 0xFFFF])
        counts.append(np.stack([occurrences[at], documents[at]]))
    pairs, which = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.zeros((2, len(pairs)), np.int64)
    for row, more in zip(sums, np.concatenate(counts, axis=1), strict=True):
        np.add.at(row, which, more)
    return pairs // max(1, len(code)), pairs % max(1, len(code)), *sums
