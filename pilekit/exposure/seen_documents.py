"""`SeenDocuments`: the steps of a run in which some documents were, as rows and as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from pilekit.display.fitted_table import DASH, MOST_ROWS, Column, FittedTable
from pilekit.display.table_result import TableResult
from pilekit.errors import counted

SHOWN_STEPS = 4
"""The most steps in a cell of the table."""

_PLACE = pa.struct({"shard": pa.string(), "number": pa.int64()})
SEEN_ROWS = pa.schema(
    {"shard": pa.string(), "number": pa.int64(), "subset": pa.string()}
    | {"steps": pa.list_(pa.int64()), "times": pa.int64(), "tokens": pa.int64(), "ignored": pa.int64()}
    | {"copy_of": _PLACE, "similarity": pa.float64(), "reason": pa.string()}
)


@dataclass(frozen=True, repr=False)
class SeenDocuments(TableResult):
    """The steps in which a run has seen documents.

    rows      a row per document: `shard`, `number`, its `subset` (null if it was in no step), the `steps` in which any
              of its tokens were, how many `times` it began in a row, and the `tokens` trained on, its EOD counted. The
              tokens that `data.without` left without loss are `ignored`, and count nowhere else. A copy of another
              document also has `copy_of`, `similarity` and `reason`, and with `against` a row for each document that
              it is a copy of
    summary   the `run`, its first and last of `steps`, those that were `replayed` because the log lacks them, the
              number of `documents`, of those `seen`, and of their `tokens`; if tokens were `ignored`, the number of
              documents that were in no step otherwise, and the run's `attention`; for a text and `against` what was
              `scanned`; and of the documents `against` which copies were sought how many there are, and are `copied`
    """

    ROWS: ClassVar[tuple[str, str]] = ("document", "rows")

    rows: pa.Table = field(repr=False)
    summary: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The summary, and the `rows`."""
        return {**self.summary, "rows": self.rows.to_pylist()}

    def _rows(self) -> Mapping[Any, Any]:
        rows = reversed(self.rows.to_pylist())  # of the rows of a document the first counts
        return {f"{row['shard']} {row['number']}": row for row in rows}

    def to_arrow(self) -> pa.Table:
        """The rows."""
        return self.rows

    def table(self) -> FittedTable[int]:
        """A row per document, and sentences about what was looked at."""
        shown = self.rows.slice(0, MOST_ROWS).to_pylist()

        def of_row(title: str, cell: Callable[[dict[str, Any]], str], **look: Any) -> Column[int]:
            return Column(title, lambda place: cell(shown[place]), **look)

        columns = [
            of_row("Document", lambda row: f"{row['shard']} {row['number']}"),
            of_row("Subset", lambda row: DASH if row["subset"] is None else row["subset"], justify="left"),
            of_row("Times", lambda row: f"{row['times']:,}"),
            of_row("Tokens", lambda row: f"{row['tokens']:,}"),
            *([of_row("Ignored", lambda row: f"{row['ignored']:,}")] if "ignored" in self.summary else []),
            of_row("Steps", lambda row: _listed(row["steps"]), justify="left"),
        ]
        if "against" in self.summary:  # else the document itself is in the table
            columns.append(of_row("Copy of", lambda row: _original(row["copy_of"]), justify="left"))
        if self.rows["copy_of"].null_count < len(self.rows):
            columns.append(of_row("Similarity", lambda row: DASH if row["copy_of"] is None else _similarity(row)))
        places = range(len(self.rows))
        return FittedTable(places, columns, priority=("Subset", "Times", "Tokens"), notes=self._notes())

    def _notes(self) -> list[str]:
        summary = self.summary
        first, last = summary["steps"]
        in_none = summary["documents"] - summary["seen"]
        notes = [f"{summary['seen']:,} of {counted(summary['documents'])} seen in steps {first:,} to {last:,}"]
        if in_none:
            notes.append(f"{counted(in_none)} in no step: all pieces of all these steps were looked at")
        if ignored := summary.get("ignored"):
            read = "" if ignored["attention"] == "document" else ", and other documents of their rows attended to them"
            notes.append(f"{counted(ignored['documents'])} stood in rows without loss, by data.without{read}")
        if summary["replayed"]:
            notes.append(f"{counted(sum(b - a + 1 for a, b in summary['replayed']), 'step')} replayed from the stream")
        if first > 1:
            origin = summary["began_from"]
            other = "another run" if origin is None else f"the run that {origin} is of"
            notes.append(f"steps 1 to {first - 1:,} are those of {other}")
        if against := summary.get("against"):
            notes.append(
                f"{against['copied']:,} of {counted(against['documents'])} of {against['path']} have copies in the "
                f"run's data: equal texts, or a similarity of {against['threshold']} or more by word 5-grams"
            )
        if scanned := summary.get("scanned"):
            skipped = f", {counted(scanned['skipped'], 'bad line')} skipped" if scanned["skipped"] else ""
            notes.append(
                f"scanned {counted(scanned['documents'])} in {counted(scanned['shards'], 'shard')} "
                f"({counted(scanned['stored_bytes'], 'stored byte')}{skipped})"
            )
        return notes


def _listed(steps: Sequence[int]) -> str:
    if not steps:
        return "in no step"
    more = f" … ({len(steps):,})" if len(steps) > SHOWN_STEPS else ""
    return ", ".join(f"{step:,}" for step in steps[:SHOWN_STEPS]) + more


def _original(place: Mapping[str, Any] | None) -> str:
    return DASH if place is None else f"{place['shard']} {place['number']}"


def _similarity(row: Mapping[str, Any]) -> str:
    return "exact" if row["reason"] == "exact" else f"{row['similarity']:.3f}"
