"""`DecontaminationResult` and `SubstringResult`: the folder of a finished run, its summary and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilekit.cutting.verdicts import HITS, VERDICTS
from pilekit.display.fitted_table import DASH, Column, FittedTable, count_columns, percentage
from pilekit.display.table_result import TableResult
from pilekit.shards.read.read_errors import SkippedLines

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY, REPEATS = "summary.json", "repeats.parquet"
Row = tuple[str, dict[str, Any]]


@dataclass(frozen=True, repr=False)
class CutCorpus(TableResult):
    """A corpus with text cut out.

    folder     with tables, summary.json and clean/
    summary    the content of summary.json
    skipped    the bad lines
    """

    folder: Path
    summary: dict[str, Any]
    skipped: SkippedLines

    def table(self) -> FittedTable[Row]:
        """A row of counts per subset, the largest first, and the total."""
        return cuts_table(self.summary)


@dataclass(frozen=True, repr=False)
class DecontaminationResult(CutCorpus):
    """The result of `decontaminate_corpus`; its folder holds hits, common, evaluations and too_short `.parquet`."""

    @property
    def hits(self) -> pa.Table:
        """A row for each span and each record that shares n-grams with it."""
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / HITS)

    def evaluations(self) -> FittedTable[Row]:
        """A row per evaluation: its records, how many have text in the corpus, and how many are too short to tell."""
        return evaluations_table(self.summary)

    def verdicts(self) -> FittedTable[Row]:
        """A row per evaluation and subset: how many pairs of a span and a record have each verdict."""
        return verdicts_table(self.summary)


@dataclass(frozen=True, repr=False)
class SubstringResult(CutCorpus):
    """The result of `substrings_corpus`; its folder holds `repeats.parquet`."""

    @property
    def repeats(self) -> pa.Table:
        """A row for each cut, with the earliest place that holds it."""
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / REPEATS)


def cuts_table(summary: dict[str, Any]) -> FittedTable[Row]:
    """A row of counts per subset, the largest first, and the total."""

    def removed(row: Row) -> str:
        return f"{row[1]['characters_removed']:,}"

    columns = count_columns("Subset", "read", "spans", "cut", "pieces", "dropped")
    columns.append(Column("Characters", removed, Column("Chars", removed)))
    return FittedTable(list(summary["subsets"].items()), columns, [("Total", summary)], ("Pieces",))


def evaluations_table(summary: dict[str, Any]) -> FittedTable[Row]:
    """A row per evaluation: its records, how many have text in the corpus, and how many are too short to tell.

    If a record has an answer, the dirty records are counted by their worst verdict too.
    """

    def share(row: Row) -> str:
        return percentage(row[1]["dirty"] / row[1]["records"]) if row[1]["records"] else DASH

    verdicts = VERDICTS if has_answers(summary) else ()
    columns = [*count_columns("Evaluation", "records", "dirty", *verdicts, "too_short"), Column("Dirty %", share)]
    return FittedTable(list(summary["evaluations"].items()), columns, [])


def verdicts_table(summary: dict[str, Any]) -> FittedTable[Row]:
    """A row of verdicts per evaluation and subset: how many pairs of a span and a record have each."""
    rows = [
        (evaluation, {"subset": subset, **verdicts})
        for evaluation, counts in summary["evaluations"].items()
        for subset, verdicts in sorted(counts["subsets"].items())
    ]
    name, *counts = count_columns("Evaluation", *VERDICTS)
    subset = Column[Row]("Subset", lambda row: row[1]["subset"], justify="left")
    return FittedTable(rows, [name, subset, *counts])


def has_answers(summary: dict[str, Any]) -> bool:
    """Whether a record of the evaluations has an answer; false for what an earlier pilekit wrote."""
    return any(counts.get("answered") for counts in summary["evaluations"].values())
