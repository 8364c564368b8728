"""The table of `pilekit bpb --compare`: a row per subset, all together last, and below it in words what it says.

It fits into 80 columns. Where there are fewer, documents are rounded and then left out, long names lose their middle,
and A's and B's own figures go; the difference, its interval and its marks always stay. Of three models and more there
is one table for each further model against the first. Labels and paths come from elsewhere: they are shown as rich
`Text`, with control characters made visible.
"""

from __future__ import annotations

from rich import box
from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.errors import visible
from pilekit.evaluate.results.compare import LETTERS, Against, Comparison, Difference, left_out_text
from pilekit.fitted_table import DASH, LONGEST_NAME, MOST_ROWS, SHORTEST_NAME, rounded_count

CLEAR, APPROXIMATE = "*", "~"
USUAL_NAME, CUT_NAME = 17, 12
"""Cells of a name that are worth more than the documents, and than A's and B's own figures."""


def comparison_table(comparison: Comparison, width: int) -> RenderableType:
    """What `pilekit bpb --compare` prints; `width` in terminal cells."""
    parts: list[RenderableType] = []
    for letter, against in zip(LETTERS[1:], comparison.against, strict=False):
        parts += [_table(comparison, against, letter, width), Text(), Text(verdict(against, letter)), Text()]
    return Group(*parts, _notes(comparison))


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


def _table(comparison: Comparison, against: Against, letter: str, width: int) -> Table:
    measure = "pseudo-BPB" if comparison.kind == "masked" else "BPB"
    shown = list(against.subsets.items())[:MOST_ROWS]
    names = [visible(name, LONGEST_NAME) for name, _ in shown]
    name_width = max(map(cell_len, ["Subset", "Overall", *names]))
    rows = [against.overall, *(difference for _, difference in shown)]
    columns = _fitting(letter, rows, width, name_width)
    name_width = min(name_width, max(width - _width(columns), SHORTEST_NAME))
    table = Table(
        box=box.SIMPLE,
        padding=0,
        show_edge=False,
        show_footer=True,
        header_style="bold",
        title=f"{measure} on the same documents: {letter} against A",
        title_justify="left",
    )
    table.add_column(Text("Subset"), Text("Overall"), width=name_width, no_wrap=True, overflow="ellipsis")
    for column in columns:
        title, overall, *_ = column
        side: JustifyMethod = "right" if title else "left"
        table.add_column(Text(title), Text(overall), justify=side, no_wrap=True, min_width=max(map(len, column)))
    for name, *row in zip(names, *(cells for _, _, *cells in columns), strict=True):
        table.add_row(Text(_without_middle(name, name_width)), *map(Text, row))
    return table


_Column = list[str]
"""Title, cell of the overall row, cells of the subsets."""


def _fitting(letter: str, rows: list[Difference], width: int, name_width: int) -> list[_Column]:
    """The columns beside that of the names, as they fit into `width` cells."""
    documents = ["Documents", *(f"{one.documents:,}" for one in rows)]
    short = ["Docs", *(rounded_count(one.documents) for one in rows)]
    figures = [
        [title, *(DASH if one.bpb is None else f"{one.bpb[which]:.4f}" for one in rows)]
        for which, title in enumerate(("A", letter))
    ]
    found = [
        [f"{letter} - A", *(DASH if one.difference is None else f"{one.difference:+.4f}" for one in rows)],
        ["95 % interval", *map(_interval, rows)],
        ["", *map(_marks, rows)],
    ]
    for columns, name in (
        ([documents, *figures, *found], USUAL_NAME),
        ([short, *figures, *found], USUAL_NAME),
        ([*figures, *found], CUT_NAME),
    ):
        if _width(columns) + min(name, name_width) <= width:
            return columns
    return found


def _width(columns: list[_Column]) -> int:
    """A space before each."""
    return sum(1 + max(map(len, column)) for column in columns)


def _without_middle(name: str, width: int) -> str:
    """`name` in at most `width` cells: names that begin alike, as PubMed's do, are told apart by their ends."""
    if cell_len(name) <= width:
        return name
    head, tail = name, name
    while cell_len(head) > width // 2:
        head = head[:-1]
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def _interval(one: Difference) -> str:
    return DASH if one.interval is None else f"{one.interval[0]:+.4f} to {one.interval[1]:+.4f}"


def _marks(one: Difference) -> str:
    return (CLEAR if one.sign else "") + (APPROXIMATE if one.is_approximate and one.interval is not None else "")


def _notes(comparison: Comparison) -> Table:
    """Which model is which, what the marks mean, and what to mind."""
    differences = [one for against in comparison.against for one in (against.overall, *against.subsets.values())]
    lines = list(zip(LETTERS, comparison.models, strict=False))
    if any(one.sign for one in differences):
        lines.append((CLEAR, "the interval does not hold 0; with equal models one in twenty would not"))
    if any(one.is_approximate for one in differences):
        lines.append((APPROXIMATE, "under 100 documents: the interval may be too narrow"))
    if any(comparison.left_out):
        lines.append(("documents", f"those that all scored; {left_out_text(comparison.left_out)}"))
    lines += [("mind", caution) for caution in comparison.cautions]
    table = Table(box=None, padding=0, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=11, style="dim")
    table.add_column(overflow="fold")
    for what, how in lines:
        table.add_row(Text(what), Text(visible(how, 400)))
    return table
