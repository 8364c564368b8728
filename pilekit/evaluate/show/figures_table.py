"""The figures of a result as a table: a row per subset, the overall figures last.

An 80-column terminal has room for documents, bytes, tokens, the figure with its interval and one published column. In a
narrower terminal, numbers are rounded, and then columns are dropped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, rounded_bytes, rounded_count
from pilekit.errors import visible
from pilekit.evaluate.results.published import Published
from pilekit.evaluate.results.scores import Score, Weighted
from pilekit.evaluate.training_copies import TrainingCopies

APPROXIMATE = "~"
POOLED, MIXTURE, PILE_MIXTURE = "Overall (pooled)", "Overall (mixture)", "Overall (Pile mixture)"


class FiguresRow(NamedTuple):
    """A row: a subset, all documents pooled, or the mixture.

    The paper weights its overall figures by the sizes of the subsets, so `published` overall is in the mixture's row.
    """

    name: str
    of: Score | Weighted
    copies: int | None
    published: Sequence[float | None]

    def interval(self, digits: int) -> str:
        """The interval in so many decimals, with a mark if it is approximate."""
        if self.of.interval is None:
            return DASH
        low, high = self.of.interval
        return f"{APPROXIMATE * self.of.is_approximate}{low:.{digits}f}–{high:.{digits}f}"


def figures_table(
    subsets: Mapping[str, Score],
    overall: Score,
    mixture: Weighted | None,
    protocol: Mapping[str, Any],
    published: Published | None,
    copies: TrainingCopies | None,
) -> FittedTable[FiguresRow]:
    """The fields of a `BitsPerByte` as a table, as notebooks show it."""
    columns_beside = published.columns if published else ()
    copied = {} if copies is None else copies.subsets
    rows = [
        FiguresRow(name, score, copied.get(name, 0), [of.subsets.get(name) for of in columns_beside])
        for name, score in subsets.items()
    ]
    totals = [FiguresRow(POOLED, overall, None if copies is None else copies.overall, [None] * len(columns_beside))]
    if mixture is not None:
        name = PILE_MIXTURE if protocol["manifest"] == "pile" else MIXTURE
        totals.append(FiguresRow(name, mixture, None, [of.overall for of in columns_beside]))
    interval, titles = "95 % interval", [model_title(column.model) for column in columns_beside]

    def perplexity(row: FiguresRow) -> str:
        return _figure(row.of.byte_perplexity)

    columns = [
        Column[FiguresRow](group_title(protocol.get("by")), lambda row: row.name),
        _column("Documents", "Docs", lambda score, short: _count(score.documents, short)),
        _column("Bytes", "Bytes", lambda score, short: rounded_bytes(score.bytes, "" if short else "B")),
        _column("Tokens", "Tokens", lambda score, short: _count(score.tokens, short)),
        _column("Tok/B", "Tok/B", lambda score, short: _figure(score.tokens_per_byte, 3 if short else 4)),
        Column("pseudo-BPB" if protocol.get("kind") == "masked" else "BPB", lambda row: _figure(row.of.bpb)),
        Column(interval, lambda row: row.interval(4), Column(interval, lambda row: row.interval(3))),
        Column("Byte\nperplexity", perplexity, Column("Byte\nppl.", perplexity)),
        _column("Nats/\ntoken", "Nats/\ntoken", lambda score, _: _figure(score.nats_per_token)),
    ]
    if copies is not None:
        columns.append(Column("In\ntrain", lambda row: DASH if row.copies is None else f"{row.copies:,}"))
    for place, title in enumerate(titles):
        columns.append(Column(title, lambda row, place=place: _figure(row.published[place])))  # type: ignore[misc]
    priority = [*titles[:0:-1], SHORTEN, "Nats/\ntoken", "Byte\nperplexity", "Tok/B", "Tokens", "Bytes", *titles[:1]]
    return FittedTable(rows, columns, totals, [*priority, "Documents", "In\ntrain", interval])


def group_title(by: str | None) -> str:
    """The title of the first column: a row is a subset, or a value of the column in `FILE:COLUMN`."""
    return "Subset" if by is None else visible(by.rpartition(":")[2], 40).capitalize()


def _column(title: str, short_title: str, cell: Callable[[Score, bool], str]) -> Column[FiguresRow]:
    """A column of a score's numbers; `cell` formats them in full or short. The weighted row has none."""

    def of(short: bool) -> Callable[[FiguresRow], str]:
        return lambda row: cell(row.of, short) if isinstance(row.of, Score) else DASH

    return Column(title, of(False), Column(short_title, of(True)))


def _count(number: int, short: bool) -> str:
    return rounded_count(number) if short else f"{number:,}"


def _figure(value: float | None, digits: int = 4) -> str:
    return DASH if value is None else f"{value:.{digits}f}" if value < 1e6 else f"{value:.2e}"


def model_title(model: str) -> str:
    """The name in two lines, or in more if it is long, so that it is not much wider than a figure."""
    name = visible(model, 60)
    first, _, last = name.rpartition(" ")
    if max(len(first), len(last)) <= 12:
        return "\n".join(part for part in (first, last) if part)
    return "\n".join(textwrap.wrap(name, 12))
