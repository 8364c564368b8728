"""The table of `pilekit bpb --compare`: a row per subset, the total last, and below it a verdict in words.

It fits into 80 columns. In a narrower terminal, document counts are rounded and then dropped, and after them the
models' own figures. The difference, its interval and its marks always stay. Each further model has its own table
against the first.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pilekit.evaluate.results.compare import LETTERS, Against, Comparison, Difference, left_out_text
from pilekit.evaluate.show.table import notes_table
from pilekit.fitted_table import DASH, SHORTEN, Column, FittedTable, rounded_count

CLEAR, APPROXIMATE = "*", "~"

_Row = tuple[str, Difference]


def comparison_table(comparison: Comparison, width: int) -> RenderableType:
    """The output of `pilekit bpb --compare`; `width` in terminal cells."""
    measure = "pseudo-BPB" if comparison.kind == "masked" else "BPB"
    parts: list[RenderableType] = []
    for letter, against in zip(LETTERS[1:], comparison.against, strict=False):
        title = Text(f"{measure} on the same documents: {letter} against A", style="italic")
        parts += [title, differences_table(against, letter).fit(width), Text(), Text(verdict(against, letter)), Text()]
    return Group(*parts, notes_table(_notes(comparison)))


def differences_table(against: Against, letter: str) -> FittedTable[_Row]:
    """The model called `letter` against A, as notebooks show it."""

    def own(which: int, title: str) -> Column[_Row]:
        return Column(title, lambda row: DASH if row[1].bpb is None else f"{row[1].bpb[which]:.4f}")

    columns = [
        Column[_Row]("Subset", lambda row: row[0]),
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
    return FittedTable(list(against.subsets.items()), columns, [("Overall", against.overall)], priority)


def verdict(against: Against, letter: str) -> str:
    """One sentence: whether the model called `letter` is better than A, and in how many subsets."""
    overall, subsets = against.overall, against.subsets.values()
    if overall.difference is None:
        return "No byte of text is in what both scored, so there is nothing to compare."
    if overall.interval is None:
        return "One document says nothing about others: no interval, so neither is called better."
    better, worse, unclear = (sum(subset.sign == sign for subset in subsets) for sign in (-1, 1, 0))
    counted = f"of the subsets, better in {better}, worse in {worse}, not told apart in {unclear}"
    low, high = sorted(map(abs, overall.interval))
    if not overall.sign:
        return f"{letter} and A are not told apart over all, as the interval holds 0; {counted}."
    more = "better than A: it needs" if overall.sign < 0 else "worse than A: it needs"
    less = "less" if overall.sign < 0 else "more"
    size = abs(overall.difference)
    return f"{letter} is {more} {size:.4f} bits per byte {less} over all (95 %: {low:.4f} to {high:.4f}); {counted}."


def _interval(one: Difference) -> str:
    return DASH if one.interval is None else f"{one.interval[0]:+.4f} to {one.interval[1]:+.4f}"


def _marks(one: Difference) -> str:
    return (CLEAR if one.sign else "") + (APPROXIMATE if one.is_approximate and one.interval is not None else "")


def _notes(comparison: Comparison) -> list[tuple[str, str]]:
    """The models' letters, the meaning of the marks, and warnings."""
    differences = [one for against in comparison.against for one in (against.overall, *against.subsets.values())]
    lines = list(zip(LETTERS, comparison.models, strict=False))
    if any(one.sign for one in differences):
        lines.append((CLEAR, "the interval does not hold 0; with equal models one in twenty would not"))
    if any(one.is_approximate for one in differences):
        lines.append((APPROXIMATE, "under 100 documents: the interval may be too narrow"))
    if any(comparison.left_out):
        lines.append(("documents", f"those that all scored; {left_out_text(comparison.left_out)}"))
    lines += [("mind", caution) for caution in comparison.cautions]
    return lines
