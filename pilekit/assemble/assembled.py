"""The result of `assemble_corpus`: counts of each subset, and planned and reached shares of the bytes in train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilekit.shards.read.damage import SkippedLines
from pilekit.table_result import TableResult

if TYPE_CHECKING:
    from pilekit.fitted_table import FittedTable

_Row = tuple[str, dict[str, Any]]

PARTS = ("empty", "removed", "left_out", "val", "test", "train_documents")
"""The fates of the documents read; their counts add up to `read`."""

COUNTS = ("read", "empty", "skipped", *PARTS[1:], "train")


@dataclass(frozen=True, slots=True, repr=False)
class AssembledCorpus(TableResult):
    """The result of `assemble_corpus`, or its plan.

    folder    the folder of the corpus
    summary   the content of summary.json: counts of all documents and of each subset
    planned   share of each subset in the bytes of train, if nothing were held out or removed
    skipped   the bad lines and files that were skipped
    written   whether the corpus was written; False for a plan
    """

    folder: Path
    summary: dict[str, Any]
    planned: dict[str, float]
    skipped: SkippedLines
    written: bool

    def sum(self) -> str:
        """The documents read and their fates, in one line."""
        parts = " + ".join(f"{self.summary[name]:,} {name.replace('_', ' ')}" for name in PARTS if self.summary[name])
        return f"{self.summary['read']:,} read = {parts}"

    def table(self) -> FittedTable[tuple[str, dict[str, Any]]]:
        """A row per subset in the manifest's order, and the total."""
        from pilekit.fitted_table import SHORTEN, Column, FittedTable, rounded_bytes, rounded_count

        subsets = self.summary["subsets"]
        size = sum(row["bytes"] for row in subsets.values())
        reached = {name: row["bytes"] / size if size else 0.0 for name, row in subsets.items()}

        def number(name: str) -> Column[_Row]:
            title = name.replace("_", " ").capitalize()
            return Column(
                title, lambda row: f"{row[1][name]:,}", Column(title, lambda row: rounded_count(row[1][name]))
            )

        def share(title: str, shares: dict[str, float]) -> Column[_Row]:
            return Column(title, lambda row: "100" if row[0] not in shares else f"{100 * shares[row[0]]:.2f}")

        names = [name for name in ("empty", "skipped", "removed", "left_out") if self.summary[name]]
        columns: list[Column[_Row]] = [
            Column("Subset", lambda row: row[0]),
            Column("Epochs", lambda row: f"{row[1]['epochs']:g}" if "epochs" in row[1] else ""),
            *map(number, ("read", *names, "val", "test", "train")),
            Column("Text", lambda row: rounded_bytes(row[1]["bytes"])),
            share("Planned %", self.planned),
            share("Reached %", reached),
        ]
        total = ("Total", {**self.summary, "bytes": size})
        return FittedTable([*subsets.items()], columns, [total], (SHORTEN, "Empty", "Left out", "Text"))
