"""The table of `pilekit bpb --compare`: a row per subset, the total last, and below it a verdict in words.

It fits into 80 columns. In a narrower terminal, document counts are rounded and then dropped, and after them the
models' own figures. The difference, its interval and its marks always stay. Each further model has its own table
against the first.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pilekit.evaluate.results.compare import (
    BETTER,
    LETTERS,
    TOO_FEW,
    UNCLEAR,
    WORSE,
    Against,
    Comparison,
    Difference,
    left_out_text,
)
from pilekit.evaluate.results.intervals import FEWEST
from pilekit.evaluate.results.result import APPROXIMATE_BELOW
from pilekit.evaluate.show.table import APPROXIMATE, MIXTURE, POOLED, group_title, notes_table
from pilekit.fitted_table import DASH, SHORTEN, Column, FittedTable, rounded_count

CLEAR, FEW = "*", "few"

_Row = tuple[str, Difference]


def comparison_table(comparison: Comparison) -> RenderableType:
    """The output of `pilekit bpb --compare`."""
    measure = "pseudo-BPB" if comparison.kind == "masked" else "BPB"
    parts: list[RenderableType] = []
    for letter, against in zip(LETTERS[1:], comparison.against, strict=False):
        title = Text(f"{measure} on the same documents: {letter} against A", style="italic")
        table = differences_table(against, letter, comparison.by)
        parts += [title, table, Text(), Text(verdict(against, letter)), Text()]
    return Group(*parts, notes_table(_notes(comparison)))


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
        Column("", lambda row: _marks(row[1]), justify="left"),
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


def _marks(one: Difference) -> str:
    return {BETTER: CLEAR, WORSE: CLEAR, TOO_FEW: FEW}.get(one.verdict, "") + APPROXIMATE * one.is_approximate


def _notes(comparison: Comparison) -> list[tuple[str, str]]:
    """The models' letters, the meaning of the marks, and warnings."""
    lines = list(zip(LETTERS, comparison.models, strict=False))
    marks = " ".join(
        _marks(one)
        for against in comparison.against
        for one in (against.overall, *against.subsets.values(), *filter(None, [against.weighted]))
    )
    if CLEAR in marks:
        lines.append((CLEAR, "a clear difference: p at most 0.05, in subsets by Holm's method for all of them at once"))
    if FEW in marks:
        lines.append((FEW, f"under {FEWEST} documents with text: no interval and no verdict"))
    if APPROXIMATE in marks:
        few = f"under {APPROXIMATE_BELOW} effective documents: too narrow if gains and losses differ in kind or length"
        lines.append((APPROXIMATE, few))
    weights = {against.weight for against in comparison.against if against.weighted is not None}
    lines += [
        ("mixture", f"weights of {100 * weight:.1f} % of the mixture, renormalised")
        for weight in weights
        if weight < 0.9995
    ]
    if any(comparison.left_out):
        lines.append(("documents", f"those that all scored; {left_out_text(comparison.left_out)}"))
    lines += [("mind", caution) for caution in comparison.cautions]
    return lines
