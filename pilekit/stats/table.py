"""The table of `pilekit stats`: a row per subset, as `CorpusStats` sorts them, and the totals.

A terminal of 80 characters holds the table. If it is too wide, `FittedTable` first shortens cells, and then leaves out
columns, the least important first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, percentage, rounded_bytes, rounded_count
from pilekit.errors import visible
from pilekit.stats.subset_stats import SubsetStats

MOST_JOINED = 20
"""Labels that the note below the table names."""


def stats_table(
    subsets: Sequence[SubsetStats], total: SubsetStats, manifest: str, *, are_selected: bool
) -> FittedTable[SubsetStats]:
    """The table of these subsets, of a corpus with this manifest. A figure that was not measured has no column.

    are_selected   whether the corpus may have other subsets too
    """
    given = "Paper" if manifest == "pile" else "Given"  # by the manifest, which is the paper's for the Pile alone
    columns: list[Column[SubsetStats]] = [
        Column("Subset", lambda row: "Total" if row is total else row.name),
        _count("Documents", "Docs", lambda row: row.documents),
        _bytes("Bytes", lambda row: row.bytes),
        _percentage("Share", lambda row: row.share),
    ]
    has_shares = any(subset.paper_share is not None for subset in subsets)
    if has_shares:
        columns.append(_percentage(given, lambda row: row.paper_share))
    columns += [
        _bytes("Mean", lambda row: row.mean_bytes),
        _bytes("Median", lambda row: row.median_bytes),
        _bytes("p99", lambda row: row.p99_bytes),
    ]
    if total.tokens is not None:
        columns += [_count("Tokens", "Tokens", lambda row: row.tokens or 0), Column("Tok/B", _tokens_per_byte)]
    if total.copies is not None:
        columns.append(_count("Copies", "Copies", lambda row: row.copies or 0))
    leave_out = (SHORTEN, "Median", "p99", f"{given} %", "Mean", "Tok/B", "Share %", "Tokens", "Copies")
    notes = [f"{given} %: among the selected subsets"] if has_shares and are_selected else []
    joined = [f'"{visible(label, 60)}" as {row.name}' for row in subsets for label in row.joined]
    if joined:
        more = f", and {len(joined) - MOST_JOINED:,} more" if len(joined) > MOST_JOINED else ""
        notes.append(f"Labels counted under another spelling: {', '.join(joined[:MOST_JOINED])}{more}")
    return FittedTable(subsets, columns, [total], leave_out, notes=notes)


def _count(title: str, short: str, number: Callable[[SubsetStats], int]) -> Column[SubsetStats]:
    return Column(title, lambda row: f"{number(row):,}", Column(short, lambda row: rounded_count(number(row))))


def _bytes(title: str, number: Callable[[SubsetStats], float]) -> Column[SubsetStats]:
    short: Column[SubsetStats] = Column(title, lambda row: rounded_bytes(number(row), ""))
    return Column(title, lambda row: rounded_bytes(number(row)), short)


def _percentage(title: str, share: Callable[[SubsetStats], float | None]) -> Column[SubsetStats]:
    def cell(row: SubsetStats) -> str:
        value = share(row)
        # The whole is 100, because 100.00 would be one character wider than every other share.
        return DASH if value is None else "100" if value == 1 else percentage(value)

    return Column(f"{title} %", cell, Column(title, cell))


def _tokens_per_byte(row: SubsetStats) -> str:
    return DASH if row.tokens_per_byte is None else f"{row.tokens_per_byte:.3f}"
