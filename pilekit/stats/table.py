"""The table of `pilekit stats`, fitted to the width there is.

An 80-column terminal holds every column: where they do not fit as they are, numbers are rounded to three digits and
titles shortened. Where even that does not suffice, columns go, the least telling first. Labels come from the corpus,
which may be hostile: they are shown as rich `Text`, so markup in them is just text, with control characters made
visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.errors import visible
from pilekit.stats.summary import CorpusStats, SubsetStats

DASH = "–"
MOST_ROWS = 200
LONGEST_NAME = 40
SHORTEST_NAME = 8


@dataclass(frozen=True, slots=True)
class _Column:
    """A column in one of its two forms; the one with the highest `expendable` goes first, one with 0 never."""

    title: str
    cell: Callable[[SubsetStats], str]
    expendable: int = 0

    def width(self, rows: list[SubsetStats]) -> int:
        return max(len(self.title), *(len(self.cell(row)) for row in rows))


def stats_table(stats: CorpusStats, width: int) -> RenderableType:
    """What `pilekit stats` prints: a row per subset, the largest first, and the totals; `width` in terminal cells."""
    rows = [*stats.subsets[:MOST_ROWS], stats.total]
    names = [*(visible(subset.name, LONGEST_NAME) for subset in rows[:-1]), "Total"]
    name_width = max(map(cell_len, [*names, "Subset"]))
    columns = _full_columns(stats)
    if name_width + _width(columns, rows) > width:
        columns = _short_columns(stats)
    while name_width + _width(columns, rows) > width:
        goes = max(columns, key=lambda column: column.expendable)
        if not goes.expendable:
            break
        columns.remove(goes)

    table = Table(box=box.SIMPLE, padding=0, show_edge=False, show_footer=True, header_style="bold")
    fitted = min(name_width, max(width - _width(columns, rows), SHORTEST_NAME))
    table.add_column(Text("Subset"), Text("Total"), width=fitted, no_wrap=True, overflow="ellipsis")
    for column in columns:
        title, total = Text(column.title), Text(column.cell(stats.total))
        table.add_column(title, total, justify="right", no_wrap=True, min_width=column.width(rows))
    for name, row in zip(names[:-1], rows[:-1], strict=True):
        table.add_row(Text(name), *(Text(column.cell(row)) for column in columns))
    notes = []
    if len(stats.subsets) > MOST_ROWS:
        notes.append(f"{len(stats.subsets) - MOST_ROWS:,} further subsets are in the totals; --json lists them all.")
    if stats.skipped.count:
        notes.append(f"{stats.skipped.count:,} bad line{'s' if stats.skipped.count > 1 else ''} skipped.")
    return Group(table, *map(Text, notes))


def _width(columns: list[_Column], rows: list[SubsetStats]) -> int:
    """The width of all columns but the names', a space before each."""
    return sum(1 + column.width(rows) for column in columns)


def _full_columns(stats: CorpusStats) -> list[_Column]:
    return _chosen(
        stats,
        documents=_Column("Documents", lambda row: f"{row.documents:,}"),
        bytes=_Column("Bytes", lambda row: rounded_bytes(row.bytes)),
        share=_Column("Share %", lambda row: _percent(row.share)),
        paper=_Column("Paper %", lambda row: _percent(row.paper_share)),
        mean=_Column("Mean", lambda row: rounded_bytes(row.mean_bytes)),
        median=_Column("Median", lambda row: rounded_bytes(row.median_bytes)),
        p99=_Column("p99", lambda row: rounded_bytes(row.p99_bytes)),
        tokens=_Column("Tokens", lambda row: f"{row.tokens:,}"),
        tokens_per_byte=_Column("Tok/B", _tokens_per_byte),
        copies=_Column("Copies", lambda row: f"{row.copies:,}"),
    )


def _short_columns(stats: CorpusStats) -> list[_Column]:
    return _chosen(
        stats,
        documents=_Column("Docs", lambda row: rounded_count(row.documents)),
        bytes=_Column("Bytes", lambda row: rounded_bytes(row.bytes, "")),
        share=_Column("Share", lambda row: _percent(row.share), 1),
        paper=_Column("Paper", lambda row: _percent(row.paper_share), 4),
        mean=_Column("Mean", lambda row: rounded_bytes(row.mean_bytes, ""), 3),
        median=_Column("Median", lambda row: rounded_bytes(row.median_bytes, ""), 6),
        p99=_Column("p99", lambda row: rounded_bytes(row.p99_bytes, ""), 5),
        tokens=_Column("Tokens", lambda row: rounded_count(row.tokens or 0), 1),
        tokens_per_byte=_Column("Tok/B", _tokens_per_byte, 2),
        copies=_Column("Copies", lambda row: rounded_count(row.copies or 0), 1),
    )


def _chosen(stats: CorpusStats, **columns: _Column) -> list[_Column]:
    """The columns, in their order, that have anything to say."""
    if all(subset.paper_share is None for subset in stats.subsets):
        del columns["paper"]
    if stats.total.tokens is None:
        del columns["tokens"], columns["tokens_per_byte"]
    if stats.total.copies is None:
        del columns["copies"]
    return list(columns.values())


def _percent(share: float | None) -> str:
    # Without decimals for the whole, which would widen the column by one.
    return DASH if share is None else "100" if share == 1 else f"{100 * share:.2f}"


def _tokens_per_byte(row: SubsetStats) -> str:
    return DASH if row.tokens_per_byte is None else f"{row.tokens_per_byte:.3f}"


def rounded_count(number: int) -> str:
    """A count in at most five characters: `999`, `12.3k`, `211M`."""
    return str(number) if number < 1000 else _three_digits(number, ("", "k", "M", "G", "T", "P"), 1000, "")


def rounded_bytes(number: float, unit: str = "iB") -> str:
    """An amount of bytes, three digits of it, in units of 1024: `999 B`, `4.33 KiB`; with unit "": `999`, `4.33K`."""
    if math.isnan(number):
        return DASH
    if number < 999.5:
        return f"{number:.0f}" + (" B" if unit else "")
    return _three_digits(number, ("", *(f"{prefix}{unit}" for prefix in "KMGTP")), 1024, " " if unit else "")


def _three_digits(number: float, units: tuple[str, ...], base: int, space: str) -> str:
    power = 0
    # 999.5 would be rounded to 1000, a fourth digit.
    while number >= 999.5 and power < len(units) - 1:
        number /= base
        power += 1
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{space}{units[power]}"
