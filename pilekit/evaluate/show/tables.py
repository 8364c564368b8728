"""The tables of a result and of a comparison: a row per subset, the overall figures last.

An 80-column terminal has room for documents, bytes, tokens, the figure with its interval and one published column; of a
comparison, for everything. In a narrower terminal, numbers are rounded, and then columns are dropped. The difference of
two models, its interval and its marks always stay.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, rounded_bytes, rounded_count
from pilekit.errors import shortened, visible
from pilekit.evaluate.results.difference import BETTER, TOO_FEW, UNCLEAR, WORSE, Against, Difference
from pilekit.evaluate.results.intervals import FEWEST
from pilekit.evaluate.results.published import Published
from pilekit.evaluate.results.scores import Score, Weighted
from pilekit.evaluate.training_copies import TrainingCopies

APPROXIMATE, CLEAR, FEW = "~", "*", "few"
POOLED, MIXTURE, PILE_MIXTURE = "Overall (pooled)", "Overall (mixture)", "Overall (Pile mixture)"

_Row = tuple[str, Difference]


class FiguresRow(NamedTuple):
    """A row: a subset, all documents pooled, or the mixture.

    The paper weights its overall figures by the sizes of the subsets, so `published` overall is in the mixture's row.
    """

    name: str
    score: Score | Weighted
    copies: int | None
    published: Sequence[float | None]

    def interval(self, digits: int) -> str:
        """The interval in so many decimals, with a mark if it is approximate."""
        if self.score.interval is None:
            return DASH
        low, high = self.score.interval
        return f"{APPROXIMATE * self.score.is_approximate}{low:.{digits}f}–{high:.{digits}f}"


def figures_table(
    subsets: Mapping[str, Score],
    overall: Score,
    mixture: Weighted | None,
    protocol: Mapping[str, Any],
    published: Published | None,
    copies: TrainingCopies | None,
) -> FittedTable[FiguresRow]:
    """The fields of a `BitsPerByte` as a table, as notebooks show it."""
    models = published.columns if published else ()
    copied = {} if copies is None else copies.subsets
    rows = [
        FiguresRow(name, score, copied.get(name, 0), [model.subsets.get(name) for model in models])
        for name, score in subsets.items()
    ]
    totals = [FiguresRow(POOLED, overall, None if copies is None else copies.overall, [None] * len(models))]
    if mixture is not None:
        name = PILE_MIXTURE if protocol["manifest"] == "pile" else MIXTURE
        totals.append(FiguresRow(name, mixture, None, [model.overall for model in models]))
    interval, titles = "95 % interval", [model_title(model.model) for model in models]

    def perplexity(row: FiguresRow) -> str:
        return _figure(row.score.byte_perplexity)

    columns = [
        Column[FiguresRow](group_title(protocol.get("by")), lambda row: row.name),
        _column("Documents", "Docs", lambda score, short: _count(score.documents, short)),
        _column("Bytes", "Bytes", lambda score, short: rounded_bytes(score.bytes, "" if short else "B")),
        _column("Tokens", "Tokens", lambda score, short: _count(score.tokens, short)),
        _column("Tok/B", "Tok/B", lambda score, short: _figure(score.tokens_per_byte, 3 if short else 4)),
        Column("pseudo-BPB" if protocol.get("kind") == "masked" else "BPB", lambda row: _figure(row.score.bpb)),
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
    return "Subset" if by is None else shortened(by.rpartition(":")[2], 40).capitalize()


def _column(title: str, short_title: str, cell: Callable[[Score, bool], str]) -> Column[FiguresRow]:
    """A column of a score's numbers; `cell` formats them in full or short. The weighted row has none."""

    def cells(short: bool) -> Callable[[FiguresRow], str]:
        return lambda row: cell(row.score, short) if isinstance(row.score, Score) else DASH

    return Column(title, cells(False), Column(short_title, cells(True)))


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


def differences_table(against: Against, letter: str, by: str | None = None) -> FittedTable[_Row]:
    """The model called `letter` against A, as notebooks show it, per subset or group (`by`)."""

    def interval(row: _Row) -> str:
        limits = row[1].interval
        return DASH if limits is None else f"{limits[0]:+.4f} to {limits[1]:+.4f}"

    def figure(model: int, title: str) -> Column[_Row]:
        return Column(title, lambda row: DASH if row[1].bpb is None else f"{row[1].bpb[model]:.4f}")

    columns = [
        Column[_Row](group_title(by), lambda row: row[0]),
        Column(
            "Documents",
            lambda row: f"{row[1].documents:,}",
            Column("Docs", lambda row: rounded_count(row[1].documents)),
        ),
        figure(0, "A"),
        figure(1, letter),
        Column(f"{letter} - A", lambda row: DASH if row[1].difference is None else f"{row[1].difference:+.4f}"),
        Column("95 % interval", interval),
        Column("", lambda row: marks(row[1]), justify="left"),
    ]
    priority = [SHORTEN, "Documents", "A", letter]
    totals = [(POOLED, against.overall)]
    if against.weighted is not None:
        totals.append((MIXTURE, against.weighted))
    return FittedTable(list(against.subsets.items()), columns, totals, priority)


def verdict(against: Against, letter: str) -> str:
    """One sentence: whether the model called `letter` is better than A, and in how many subsets."""
    overall = against.overall
    if overall.difference is None:
        return "No byte of text is in what both scored, so there is nothing to compare."
    if overall.interval is None:
        return f"Under {FEWEST} documents with text say too little about others, so neither is called better."
    subsets = [subset.verdict for subset in against.subsets.values()]
    counts = ", ".join(
        f"{words} {subsets.count(verdict)}"
        for verdict, words in (
            (BETTER, "better in"),
            (WORSE, "worse in"),
            (UNCLEAR, "not told apart in"),
            (TOO_FEW, "too few documents in"),
        )
        if verdict != TOO_FEW or verdict in subsets
    )
    more = f"of the subsets, {counts}"
    if against.weighted is not None:
        more = f"weighted by the mixture: {against.weighted.verdict}; {more}"
    if overall.verdict == UNCLEAR:
        return f"{letter} and A are not told apart over all, as the interval holds 0; {more}."
    low, high = sorted(map(abs, overall.interval))
    less = "less" if overall.verdict == BETTER else "more"
    return (
        f"{letter} is {overall.verdict} than A: it needs {abs(overall.difference):.4f} bits per byte {less} over all "
        f"(95 %: {low:.4f} to {high:.4f}); {more}."
    )


def marks(difference: Difference) -> str:
    """The marks of a row, which the notes below the tables explain."""
    mark = {BETTER: CLEAR, WORSE: CLEAR, TOO_FEW: FEW}.get(difference.verdict, "")
    return mark + APPROXIMATE * difference.is_approximate
