"""`CorpusStats` and `SubsetStats`: the figures of a corpus and of a subset, and their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, percentage, rounded_bytes, rounded_count
from pilekit.display.table_result import Result, TableResult
from pilekit.errors import counted, shortened
from pilekit.shards.read.read_errors import SkippedLines

MOST_JOINED = 20
"""Labels that the note below the table names."""


@dataclass(frozen=True, slots=True)
class SubsetStats(Result):
    """The figures of one subset, or of all subsets together.

    bytes          UTF-8 bytes of the texts
    share          of all bytes counted, 0 to 1
    paper_share    of all bytes, or of the bytes of the selected subsets, by the manifest (the paper's for the Pile),
                   0 to 1; None where the manifest has none
    mean_bytes, median_bytes, p99_bytes   of a document; the quantiles within 0.8 %; nan without documents
    lengths        histogram of the documents' bytes, int64 [BINS] (see histogram.py)
    tokens         without EOD; None without a tokenizer
    copies         documents whose text occurred before, in any subset; None if they were not counted
    joined         labels of its documents that spell it otherwise
    """

    name: str
    documents: int
    bytes: int
    share: float
    paper_share: float | None
    mean_bytes: float
    median_bytes: float
    p99_bytes: float
    lengths: npt.NDArray[np.int64] = field(repr=False)
    tokens: int | None = None
    copies: int | None = None
    joined: tuple[str, ...] = ()

    @property
    def tokens_per_byte(self) -> float | None:
        """Tokens per UTF-8 byte; None without a tokenizer or without bytes."""
        return None if self.tokens is None or not self.bytes else self.tokens / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """The figures; `tokens` and `copies` only where they were counted."""
        names = ["documents", "bytes", "share", "mean_bytes", "median_bytes", "p99_bytes"]
        names += [name for name in ("tokens", "copies") if getattr(self, name) is not None]
        return {**{name: getattr(self, name) for name in names}, "joined": list(self.joined)}


@dataclass(frozen=True, slots=True, repr=False)
class CorpusStats(TableResult):
    """The contents of a corpus. `stats["ArXiv"]` are the figures of a subset.

    subsets    the largest first
    total      all subsets together
    skipped    the bad lines passed over
    manifest   the name of the manifest that `paper_share` comes from
    selected   the subsets that were asked for; None: all
    """

    subsets: tuple[SubsetStats, ...]
    total: SubsetStats
    skipped: SkippedLines
    manifest: str
    selected: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """`{"documents", "bytes", "skipped", "subsets": {name: {"documents", "bytes", "share", "mean_bytes", ...}}}`.

        `skipped` is the number of skipped lines, `share` a fraction of 1; `tokens` and `copies` only where counted.
        `selected` lists the subsets that were asked for, if not all were.
        """
        total = self.total.to_dict()
        return {
            **{name: total[name] for name in ("documents", "bytes", "tokens", "copies") if name in total},
            "skipped": self.skipped.count,
            **({} if self.selected is None else {"selected": list(self.selected)}),
            "subsets": {subset.name: subset.to_dict() for subset in self.subsets},
        }

    def _rows(self) -> dict[str, SubsetStats]:
        """The figures of each subset."""
        return {subset.name: subset for subset in self.subsets}

    def __repr__(self) -> str:
        return (
            f"CorpusStats({counted(self.total.documents)}, {counted(self.total.bytes, 'byte')}, "
            f"{counted(len(self.subsets), 'subset')}, {counted(self.skipped.count, 'line')} skipped)"
        )

    def table(self) -> FittedTable[SubsetStats]:
        """A row per subset, and the totals; a figure that was not measured has no column.

        A terminal of 80 characters holds the table. If it is too wide, cells are shortened first, and then columns are
        left out, the least important first.
        """
        subsets, total = self.subsets, self.total
        paper = "Paper" if self.manifest == "pile" else "Given"  # Another manifest's shares are no paper's.
        columns: list[Column[SubsetStats]] = [
            Column("Subset", lambda row: "Total" if row is total else row.name),
            _count("Documents", "Docs", lambda row: row.documents),
            _bytes("Bytes", lambda row: row.bytes),
            _percentage("Share", lambda row: row.share),
        ]
        has_shares = any(subset.paper_share is not None for subset in subsets)
        if has_shares:
            columns.append(_percentage(paper, lambda row: row.paper_share))
        columns += [
            _bytes("Mean", lambda row: row.mean_bytes),
            _bytes("Median", lambda row: row.median_bytes),
            _bytes("p99", lambda row: row.p99_bytes),
        ]
        if total.tokens is not None:
            columns += [_count("Tokens", "Tokens", lambda row: row.tokens or 0), Column("Tok/B", _tokens_per_byte)]
        if total.copies is not None:
            columns.append(_count("Copies", "Copies", lambda row: row.copies or 0))
        leave_out = (SHORTEN, "Median", "p99", f"{paper} %", "Mean", "Tok/B", "Share %", "Tokens", "Copies")
        notes = [f"{paper} %: among the selected subsets"] if has_shares and self.selected is not None else []
        joined = [f'"{shortened(label, 60)}" as {row.name}' for row in subsets for label in row.joined]
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
