"""Tables that fit the terminal, for all commands; the same tables as HTML, for notebooks.

    documents = Column("Documents", lambda row: f"{row.documents:,}")
    p99 = Column("p99", lambda row: rounded_bytes(row.p99_bytes))
    console.print(FittedTable(rows, [Column("Subset", lambda row: row.name), documents, p99], priority=["p99"]))

The first column holds names. Only names may be cut, with an ellipsis; numbers are never cut. A table that is too wide
takes the steps of `priority` in order until it fits. Sentences are folded into several lines.

Labels and file names may be hostile. So cells, titles and notes are rich `Text`, in which markup is only text, and
control characters are made visible here. The functions that make tables give texts as they are.

A table is data until it is printed: rich, which takes long to import, is imported then.
"""

from __future__ import annotations

import html
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pilekit.errors import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

Row = TypeVar("Row")

DASH = "–"
OTHERS = "(other subsets)"
"""The name of the row for all subsets outside of the selection."""

SHORTEN = "(shorten)"
"""The step at which all columns take their short forms."""

MOST_ROWS = 200
LONGEST_NAME = 40
USUAL_NAME = 21
"""Names up to this width matter more than the columns that `priority` drops."""

SHORTEST_NAME = 8
LONGEST_LINE = 100
FACT_NAME = 10
LEAST_FOLDED = 20
"""A column of sentences is at least this wide."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its title, which may have several lines, and the text of its cell in a row.

    short     the narrower form, with another title or fewer digits
    justify   the side of the cells
    fold      for names in full and for sentences, which take several lines: the most terminal cells of a line
    style     rich's style of the cells
    """

    title: str
    cell: Callable[[Row], str]
    short: Column[Row] | None = None
    justify: Literal["left", "right"] = "right"
    fold: int | None = None
    style: str = ""

    def texts(self, rows: Sequence[Row]) -> list[str]:
        """The cell of each row, safe to print."""
        return [visible(self.cell(row)) for row in rows]

    def width(self, rows: Sequence[Row]) -> int:
        """The terminal cells that the column needs."""
        from rich.cells import cell_len

        width = max(map(cell_len, [*visible_lines(self.title).split("\n"), *self.texts(rows)]))
        return width if self.fold is None else min(width, LEAST_FOLDED)


@dataclass(frozen=True)
class FittedTable(Generic[Row]):
    """A table of rows of any type, for rich and for notebooks.

    rows       the first `most_rows` are shown
    columns    the names first
    totals     rows below a line
    priority   steps that make the table narrower, in order: titles of columns to drop, and `SHORTEN`
    notes      lines below the table
    """

    rows: Sequence[Row]
    columns: Sequence[Column[Row]]
    totals: Sequence[Row] = ()
    priority: Sequence[str] = (SHORTEN,)
    most_rows: int = MOST_ROWS
    notes: Sequence[str] = ()

    def fit(self, width: int) -> Table:
        """The table in at most `width` terminal cells."""
        from rich import box
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        rows = self.rows[: self.most_rows]
        shown = [*rows, *self.totals]
        names, columns = self.columns[0], {column.title: column for column in self.columns[1:]}
        labels = [visible(names.cell(row), LONGEST_NAME if names.fold is None else None) for row in shown]
        more = f"({len(self.rows) - len(rows):,} more)" if len(self.rows) > len(rows) else ""

        def needed() -> int:
            return sum(1 + column.width(shown) for column in columns.values())

        name_width = max(map(cell_len, [visible_lines(names.title), more, *labels]))
        name_width = name_width if names.fold is None else min(name_width, names.fold)
        for step in self.priority:
            if min(name_width, USUAL_NAME) + needed() <= width:
                break
            if step == SHORTEN:
                columns = {title: column.short or column for title, column in columns.items()}
            else:
                columns.pop(step, None)
        name_width = min(name_width, max(width - needed(), SHORTEST_NAME))

        has_sentences = any(column.fold is not None for column in self.columns)
        looks: dict[str, Any] = {"vertical": "top" if has_sentences else "bottom"}
        table = Table(
            box=box.SIMPLE,
            padding=0,
            show_edge=False,
            show_header=any(column.title for column in self.columns),
            show_footer=bool(self.totals),
            header_style="bold",
        )
        cells = [labels, *(column.texts(shown) for column in columns.values())]
        for column, texts in zip((names, *columns.values()), cells, strict=True):
            total = Text("\n".join(texts[len(rows) :]))
            if column is names:
                size: dict[str, Any] = {"width": name_width, "overflow": "ellipsis", "no_wrap": True}
            else:
                size = {"justify": column.justify, "min_width": column.width(shown), "no_wrap": True}
            if column.fold is not None:
                size |= {"overflow": "fold", "no_wrap": False, "max_width": column.fold}
            table.add_column(Text(visible_lines(column.title)), total, style=column.style, **size, **looks)
        for row in zip(*(texts[: len(rows)] for texts in cells), strict=True):
            table.add_row(*map(Text, row))
        if more:
            table.add_row(Text(more))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self.fit(options.max_width)
        yield from (Text(visible(note)) for note in self.notes)

    def __str__(self) -> str:
        """The table in the width of the terminal, or of 80 characters, without colours."""
        from rich.console import Console

        console = Console(width=shutil.get_terminal_size().columns, highlight=False, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _repr_html_(self) -> str:
        """All columns in full as an HTML table, which notebooks show."""

        def line(texts: Iterable[str], tag: str = "td") -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

        def lines(rows: Sequence[Row]) -> str:
            return "".join(map(line, zip(*(column.texts(rows) for column in self.columns), strict=True)))

        head = line((visible_lines(column.title).replace("\n", " ") for column in self.columns), "th")
        body = lines(self.rows[: self.most_rows])
        if len(self.rows) > self.most_rows:
            body += line([f"({len(self.rows) - self.most_rows:,} more)"])
        notes = "".join(f"<p>{html.escape(visible(note))}</p>" for note in self.notes)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody><tfoot>{lines(self.totals)}</tfoot></table>{notes}"


def count_columns(title: str, *counts: str) -> list[Column[Any]]:
    """The columns of rows (name, figures): the names under `title`, and a column for each of these counts."""

    def column(name: str) -> Column[Any]:
        return Column(name.replace("_", " ").capitalize(), lambda row: f"{row[1][name]:,}")

    return [Column(title, lambda row: row[0]), *map(column, counts)]


def facts_table(facts: Sequence[tuple[str, str]], style: str = "dim") -> FittedTable[tuple[str, str]]:
    """A table without a head: names in this style, each with a sentence about it."""
    names = Column[tuple[str, str]]("", lambda fact: fact[0].ljust(FACT_NAME), style=style)
    sentences = Column[tuple[str, str]]("", lambda fact: fact[1], justify="left", fold=LONGEST_LINE)
    return FittedTable(facts, [names, sentences], most_rows=len(facts))


def percentage(share: float, digits: int = 2) -> str:
    """A share in per cent, as `12.34`. A share that would be rounded to nothing is `<0.01`."""
    text = f"{100 * share:.{digits}f}"
    return f"<{10.0**-digits:.{digits}f}" if share > 0 and float(text) == 0 else text


def rounded_count(number: float) -> str:
    """A count in at most five characters: `999`, `12.3k`, `211M`."""
    return rounded_bytes(number, "")


def rounded_bytes(number: float, unit: str = "B") -> str:
    """Bytes in three digits and units of 1000: `999 B`, `4.33 kB`; with an empty `unit` `999`, `4.33k`."""
    if math.isnan(number):
        return DASH
    prefixes = ("", "k", "M", "G", "T", "P")
    power = 0
    # 999.5 would be rounded to 1000, a fourth digit.
    while number >= 999.5 and power < len(prefixes) - 1:
        number /= 1000
        power += 1
    digits = 0 if power == 0 or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f}{' ' if unit else ''}{prefixes[power]}{unit}"
