"""The tables of commands whose result is a list: of shards, of documents, of two models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pilekit.display.fitted_table import DASH, Column, FittedTable, count_columns, percentage, rounded_bytes

if TYPE_CHECKING:
    from pilekit.corpus import Shard
    from pilekit.shards.index.format import ShardIndex
    from pilekit.shards.write.reframe import ReframeResult
    from pilekit.train.model.prune import PruneResult


def index_table(indexes: Sequence[tuple[Shard, ShardIndex]]) -> FittedTable[tuple[Shard, ShardIndex]]:
    """A row for each shard and its index."""
    columns: list[Column[tuple[Shard, ShardIndex]]] = [
        Column("Shard", lambda row: row[0].name),
        Column("Documents", lambda row: f"{row[1].header.documents:,}"),
        Column("Text", lambda row: rounded_bytes(row[1].header.text_bytes)),
        Column("Frames", lambda row: f"{len(row[1].frames):,}"),
        Column("Bad lines", lambda row: f"{row[1].header.skipped:,}"),
        Column("Index", lambda row: "built" if row[1].built else "kept", justify="left"),
    ]
    return FittedTable(indexes, columns, priority=("Frames", "Text"))


def reframe_table(reframed: list[ReframeResult]) -> FittedTable[list[ReframeResult]]:
    """A row for each shard, and the total if there are several."""

    def total(row: list[ReframeResult], field: str) -> int:
        return sum(getattr(shard, field) for shard in row)

    def column(title: str, field: str, write: Callable[[int], str] = "{:,}".format) -> Column[list[ReframeResult]]:
        return Column(title, lambda row: write(total(row, field)))

    columns: list[Column[list[ReframeResult]]] = [
        Column("Shard", lambda row: "Total" if row is reframed else row[0].shard),
        column("Documents", "documents"),
        column("Text", "text_bytes", rounded_bytes),
        column("Before", "stored_before", rounded_bytes),
        column("After", "stored_bytes", rounded_bytes),
        Column("%", lambda row: f"{100 * (total(row, 'stored_bytes') / total(row, 'stored_before') - 1):+.1f}"),
        column("Frames", "frames"),
    ]
    if total(reframed, "bad_lines"):
        columns.append(column("Bad lines", "bad_lines"))
    priority = ("Text", "Before", "Documents", "Frames")
    return FittedTable([[shard] for shard in reframed], columns, [reframed] * (len(reframed) > 1), priority)


def grep_table(counts: dict[str, Any]) -> FittedTable[Any]:
    """A row for each subset with documents in which the pattern is found, the most first, and the total."""
    rows = sorted(counts["subsets"].items(), key=lambda row: (-row[1]["found"], row[0]))
    share = Column[Any]("Found %", lambda row: percentage(row[1]["found"] / max(1, row[1]["documents"])))
    return FittedTable(rows, [*count_columns("Subset", "found", "documents"), share], [("Total", counts)])


def near_table(documents: list[dict[str, Any]]) -> FittedTable[dict[str, Any]]:
    """A row for each of the documents with the nearest vectors."""
    columns = [
        Column[dict[str, Any]]("Shard", lambda row: row["shard"]),
        Column("Number", lambda row: f"{row['number']:,}"),
        Column("Subset", lambda row: row["subset"], justify="left"),
        Column("Similarity", lambda row: f"{row['similarity']:.4f}"),
    ]
    return FittedTable(documents, columns, [], ["Subset"])


def prune_table(names: tuple[str, str], pruned: PruneResult, speeds: Sequence[float]) -> FittedTable[int]:
    """The model and its pruned copy; `speeds` are their tokens a second, if they were scored."""
    columns = [
        Column[int]("Model", lambda which: names[which]),
        Column("Parameters", lambda which: f"{pruned.parameters[which]:,}"),
        Column("Zeros %", lambda which: f"{100 * pruned.zeros[which]:.2f}"),
        Column("On disk", lambda which: rounded_bytes(pruned.bytes[which])),
        Column("Tokens/s", lambda which: f"{speeds[which]:,.0f}" if speeds else DASH),
    ]
    return FittedTable([0, 1], columns, [], ["Parameters", "Tokens/s"])
