"""The differences of a model to the first: a row per subset, the total last, and a verdict in words.

The table fits into 80 columns. In a narrower terminal, document counts are rounded and then dropped, and after them the
models' own figures. The difference, its interval and its marks always stay.
"""

from __future__ import annotations

from pilekit.display.fitted_table import DASH, SHORTEN, Column, FittedTable, rounded_count
from pilekit.evaluate.results.difference import BETTER, TOO_FEW, UNCLEAR, WORSE, Against, Difference
from pilekit.evaluate.results.intervals import FEWEST
from pilekit.evaluate.show.figures_table import APPROXIMATE, MIXTURE, POOLED, group_title

CLEAR, FEW = "*", "few"

_Row = tuple[str, Difference]


def differences_table(against: Against, letter: str, by: str | None = None) -> FittedTable[_Row]:
    """The model called `letter` against A, as notebooks show it, per subset or group (`by`)."""

    def own(which: int, title: str) -> Column[_Row]:
        return Column(title, lambda row: DASH if row[1].bpb is None else f"{row[1].bpb[which]:.4f}")

    columns = [
        Column[_Row](group_title(by), lambda row: row[0]),
        Column(
            "Documents",
            lambda row: f"{row[1].documents:,}",
            Column("Docs", lambda row: rounded_count(row[1].documents)),
        ),
        own(0, "A"),
        own(1, letter),
        Column(f"{letter} - A", lambda row: DASH if row[1].difference is None else f"{row[1].difference:+.4f}"),
        Column("95 % interval", lambda row: _interval(row[1])),
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
    counted = ", ".join(
        f"{said} {subsets.count(of)}"
        for of, said in (
            (BETTER, "better in"),
            (WORSE, "worse in"),
            (UNCLEAR, "not told apart in"),
            (TOO_FEW, "too few documents in"),
        )
        if of != TOO_FEW or of in subsets
    )
    more = f"of the subsets, {counted}"
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


def _interval(one: Difference) -> str:
    return DASH if one.interval is None else f"{one.interval[0]:+.4f} to {one.interval[1]:+.4f}"


def marks(one: Difference) -> str:
    """The marks of a row, which the notes below the tables explain."""
    return {BETTER: CLEAR, WORSE: CLEAR, TOO_FEW: FEW}.get(one.verdict, "") + APPROXIMATE * one.is_approximate
