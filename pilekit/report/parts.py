"""The parts of a section: data for the template, without any HTML.

A part names its source, which the page shows as a link to the list of sources: the command and the artefact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from markupsafe import Markup

from pilekit.dedup.show.side_by_side import Cell as DiffCell
from pilekit.fitted_table import DASH, FittedTable

MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Source:
    """Where numbers come from.

    number    its number in the list of sources
    path      the artefact
    command   a command that makes the artefact with these settings; CORPUS stands for an input whose path is not known
    inputs    the names of the shards that were read, or ""
    made_by   the version of pilekit, or ""
    """

    number: int
    path: str
    command: str
    inputs: str = ""
    made_by: str = ""


def number(value: float | None, form: str = ",") -> str:
    """A number in the given format; a dash for None and for not a number."""
    return DASH if value is None or value != value else f"{value:{form}}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be sorted; rows whose first cell lacks the filter's text are hidden.

    totals   last rows, which stay where they are
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    source: Source
    totals: Sequence[Sequence[str]] = ()
    note: str = ""
    kind: str = "table"

    @classmethod
    def of(
        cls, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], source: Source, **more: Any
    ) -> Table:
        """The table of the first rows; the note says how many more there are."""
        rows = list(rows)
        if len(rows) > MOST_ROWS:
            more["note"] = f"{more.get('note', '')} The first {MOST_ROWS} of {len(rows):,} rows.".strip()
        return cls(title, columns, rows[:MOST_ROWS], source, **more)

    @classmethod
    def fitted(cls, title: str, table: FittedTable[Any], source: Source, note: str = "") -> Table:
        """The table that a command prints."""
        columns = [" ".join(column.title.split()) for column in table.columns]
        rows, totals = (
            [[column.cell(row) for column in table.columns] for row in of] for of in (table.rows, table.totals)
        )
        return cls.of(title, columns, rows, source, totals=totals, note=note)


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve that the reader can hide: the number in its `data-curve`, its name and its colour."""

    number: int
    name: str
    colour: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, with a sentence on how to read it, and the curves that can be hidden."""

    title: str
    svg: Markup
    source: Source
    note: str = ""
    curves: Sequence[Curve] = ()
    wide: bool = False
    kind: str = "figure"


@dataclass(frozen=True, slots=True)
class Facts:
    """A few numbers in large type, each with its name."""

    facts: Sequence[tuple[str, str]]
    source: Source
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Pair:
    """A kept document beside a removed one: titles, and the rows of `diff_rows`."""

    title: str
    kept: str
    removed: str
    rows: Sequence[tuple[DiffCell, DiffCell] | str]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, the differing words marked."""

    title: str
    pairs: Sequence[Pair]
    source: Source
    note: str = ""
    kind: str = "pairs"


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts from a corpus, each with a title."""

    title: str
    texts: Sequence[tuple[str, str]]
    source: Source
    note: str = ""
    kind: str = "texts"


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence on something missing or important."""

    text: str
    source: Source
    kind: str = "note"


Part: TypeAlias = Table | Figure | Facts | Pairs | Texts | Note


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page; `anchor` is its id."""

    anchor: str
    title: str
    parts: list[Part] = field(default_factory=list)
