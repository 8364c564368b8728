"""The table of `pilekit bpb`: a row per subset, all together last, and below it how the figures came about.

An 80-column terminal holds documents, bytes, tokens, the figure with its interval and one published column: where the
columns do not fit as they are, numbers are rounded to three digits, and where that does not suffice, columns go, the
least telling first. Labels come from the corpus, which may be hostile: they are shown as rich `Text`, so markup in them
is just text, with control characters made visible; so is what comes from a model's folder. A masked model's figures
are of another kind, and stand under a title that says so.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pilekit.errors import visible
from pilekit.evaluate.results.published import PublishedColumn
from pilekit.evaluate.results.result import BitsPerByte, Score, Weighted
from pilekit.evaluate.score.windows import cost_factor
from pilekit.fitted_table import DASH, LONGEST_NAME, MOST_ROWS, SHORTEST_NAME, rounded_bytes, rounded_count

APPROXIMATE = "~"
PSEUDO_TITLE = "Pseudo-BPB of a masked model: no code length, and not comparable with bits per byte of causal models"
POOLED, MIXTURE, PILE_MIXTURE = "Overall (pooled)", "Overall (mixture)", "Overall (Pile mixture)"
USUAL_NAME = len(PILE_MIXTURE)
NOTES_INDENT, NOTES_WIDTH = 11, 100
"""Notes are no wider than this or the table, whichever is more: on a page without an edge they would be long lines."""


class _Row(NamedTuple):
    """A row: of a subset, of all pooled, or (`score` None) of all weighted."""

    name: str | None
    score: Score | None
    weighted: Weighted | None = None


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """Without the blanks at the ends of lines, which whoever pastes the text would have."""

    of: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.of, options, pad=False):
            while line and not line[-1].text.rstrip(" "):
                line.pop()
            if line:
                last = line.pop()
                yield from line
                yield Segment(last.text.rstrip(" "), last.style)
            yield Segment.line()


@dataclass(frozen=True, slots=True)
class _Column:
    """A column in one of its two forms; the one with the highest `expendable` goes first, one with 0 never."""

    title: str
    cell: Callable[[_Row], str]
    expendable: float = 0

    def width(self, rows: list[_Row]) -> int:
        return max(map(cell_len, (*self.title.split("\n"), *map(self.cell, rows))))


def result_table(result: BitsPerByte, width: int) -> RenderableType:
    """What `pilekit bpb` prints; `width` in terminal cells."""
    rows = [_Row(name, score) for name, score in list(result.subsets.items())[:MOST_ROWS]]
    overall = [_Row(None, result.overall)]
    names = [POOLED]
    if result.weighted is not None:
        overall.append(_Row(None, None, result.weighted))
        names.append(PILE_MIXTURE if result.protocol.get("manifest") == "pile" else MIXTURE)
    labels = [visible(row.name or "", LONGEST_NAME) for row in rows]
    name_width = max(map(cell_len, ["Subset", *names, *labels]))
    every = [*rows, *overall]
    columns = _fitting(result, every, width, min(name_width, USUAL_NAME))
    name_width = min(name_width, max(width - _width(columns, every), SHORTEST_NAME))

    table = Table(box=box.SIMPLE, padding=0, show_edge=False, show_footer=True, header_style="bold")
    footer = Text("\n".join(names), overflow="ellipsis")
    table.add_column(Text("Subset"), footer, width=name_width, no_wrap=True, overflow="ellipsis", vertical="bottom")
    for column in columns:
        cells = Text("\n".join(map(column.cell, overall)))
        table.add_column(
            Text(column.title), cells, justify="right", no_wrap=True, min_width=column.width(every), vertical="bottom"
        )
    for label, row in zip(labels, rows, strict=True):
        table.add_row(Text(label), *(Text(column.cell(row)) for column in columns))
    title = [Text(PSEUDO_TITLE, style="bold"), Text()] if result.is_masked else []
    notes = _notes(result, _approximate(every), {column.title for column in columns})
    notes.columns[1].max_width = max(NOTES_WIDTH, name_width + _width(columns, every)) - NOTES_INDENT
    return _Trimmed(Group(*title, table, Text(), notes))


def _fitting(result: BitsPerByte, rows: list[_Row], width: int, name_width: int) -> list[_Column]:
    """The columns that fit beside names: in full, else in short, else without the most expendable.

    Published columns but the first go before numbers are shortened, and names are cut before the interval goes.
    """
    columns = _without_some(_columns(result, short=False), rows, width - name_width, at_least=9)
    if _width(columns, rows) > width - name_width:
        columns = _without_some(_columns(result, short=True), rows, width - name_width, at_least=1)
    return _without_some(columns, rows, width - SHORTEST_NAME, at_least=0)


def _without_some(columns: list[_Column], rows: list[_Row], width: int, *, at_least: float) -> list[_Column]:
    columns = list(columns)
    while _width(columns, rows) > width:
        goes = max(columns, key=lambda column: column.expendable)
        if goes.expendable <= at_least:
            break
        columns.remove(goes)
    return columns


def _width(columns: list[_Column], rows: list[_Row]) -> int:
    """The width of all columns but the names', a space before each."""
    return sum(1 + column.width(rows) for column in columns)


def _columns(result: BitsPerByte, *, short: bool) -> list[_Column]:
    measure = "pseudo-BPB" if result.is_masked else "BPB"
    digits = 3 if short else 4
    columns = [
        _Column("Docs" if short else "Documents", _of(lambda score: _count(score.documents, short)), 2),
        _Column("Bytes", _of(lambda score: rounded_bytes(score.bytes, "" if short else "iB")), 4),
        _Column("Tokens", _of(lambda score: _count(score.tokens, short)), 5),
        _Column("Tok/B", _of(lambda score: _figure(score.tokens_per_byte, digits)), 6),
        _Column(measure, lambda row: _figure(_bpb(row), 4)),
        _Column("95 % interval", lambda row: _interval(row, digits), 1),
        _Column("Byte\nppl." if short else "Byte\nperplexity", lambda row: _figure(_perplexity(row), 4), 7),
        _Column("Nats/\ntoken", _of(lambda score: _figure(score.nats_per_token, 4)), 8),
    ]
    copies = result.training_copies
    if copies is not None:

        def copied(row: _Row) -> str:
            if row.score is None:
                return DASH
            return f"{copies.overall if row.name is None else copies.subsets.get(row.name, 0):,}"

        columns.append(_Column("In\ntrain", copied, 1.5))
    if result.published is not None:
        for place, column in enumerate(result.published.columns):
            columns.append(_Column(_model_title(column.model), _published(column), 3 if not place else 9 + place / 100))
    return columns


def _of(cell: Callable[[Score], str]) -> Callable[[_Row], str]:
    return lambda row: DASH if row.score is None else cell(row.score)


def _published(column: PublishedColumn) -> Callable[[_Row], str]:
    """The paper weights its overall figures by the sizes of the subsets: they stand beside the mixture's."""

    def cell(row: _Row) -> str:
        if row.name is not None:
            return _figure(column.subsets.get(row.name), 4)
        return _figure(None if row.weighted is None else column.overall, 4)

    return cell


def _bpb(row: _Row) -> float | None:
    of = row.weighted if row.score is None else row.score
    return None if of is None else of.bpb


def _perplexity(row: _Row) -> float | None:
    if row.score is not None:
        return row.score.byte_perplexity
    bpb = _bpb(row)
    return None if bpb is None or bpb >= 1024 else 2.0**bpb


def _interval(row: _Row, digits: int) -> str:
    of = row.weighted if row.score is None else row.score
    if of is None or of.interval is None:
        return DASH
    low, high = of.interval
    return f"{APPROXIMATE if _is_approximate(row) else ''}{low:.{digits}f}–{high:.{digits}f}"


def _is_approximate(row: _Row) -> bool:
    if row.score is not None:
        return row.score.is_approximate
    return row.weighted is not None and row.weighted.approximate


def _approximate(rows: list[_Row]) -> bool:
    return any(_interval(row, 1).startswith(APPROXIMATE) for row in rows)


def _count(number: int, short: bool) -> str:
    return rounded_count(number) if short else f"{number:,}"


def _figure(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}" if value < 1e6 else f"{value:.2e}"


def _model_title(model: str) -> str:
    """The name in two lines, or if it is long in several, not much wider than a figure."""
    name = visible(model, 60)
    first, _, last = name.rpartition(" ")
    if max(len(first), len(last)) <= 12:
        return "\n".join(part for part in (first, last) if part)
    return "\n".join(textwrap.wrap(name, 12))


def _notes(result: BitsPerByte, any_approximate: bool, titles: set[str]) -> Table:
    """What stands below the columns of these titles: what the figures are, then the protocol; lines of `what  how`."""
    lines: list[tuple[str, str | None]] = []
    if len(result.subsets) > MOST_ROWS:
        more = len(result.subsets) - MOST_ROWS
        lines.append(("rows", f"{more:,} further subsets are in the overall figures; --json lists them all."))
    if any_approximate:
        lines.append(
            (APPROXIMATE, "approximate, may be too narrow: under 100 documents, or a subset of the mixture has")
        )
    lines += [("warning", warning) for warning in result.warnings]
    lines += [("mixture", _mixture(result.weighted)), ("published", _published_note(result, titles))]
    lines += [("in train", _copies(result)), *_protocol(result.protocol, result.is_masked)]
    table = Table(box=None, padding=0, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=NOTES_INDENT, style="dim")
    table.add_column(overflow="fold")
    for what, how in lines:
        if how is not None:
            table.add_row(Text(what), Text(visible(how, 1000)))
    return table


def _mixture(weighted: Weighted | None) -> str | None:
    if weighted is None or not (weighted.missing or weighted.held_fixed):
        return None
    said = []
    if weighted.missing:
        said.append(
            f"weights of {100 * weighted.weight:.1f} % of the mixture, renormalised; no documents of "
            f"{_first_names(weighted.missing)}"
        )
    if weighted.held_fixed:
        names = _first_names(weighted.held_fixed)
        one = (
            f"one document of {names}: adds" if len(weighted.held_fixed) == 1 else f"one document each of {names}: add"
        )
        said.append(f"{one} nothing to the interval")
    return "; ".join(said)


def _first_names(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"


def _published_note(result: BitsPerByte, titles: set[str]) -> str | None:
    if result.published is None:
        return None if result.withheld is None else f"not shown: {result.withheld}"
    said = [result.published.differs]
    shown = [column for column in result.published.columns if _model_title(column.model) in titles]
    if copied := [column.model for column in shown if column.is_secondary]:
        said.append(f"Read in a copy: {', '.join(copied)}.")
    verified = [column for column in result.published.overall if not column.is_secondary]
    if verified:
        figures = ", ".join(f"{column.model} {column.overall:.4f}" for column in verified)
        said.append(f"Overall only, on {verified[0].split}: {figures}.")
    return " ".join(said)


def _copies(result: BitsPerByte) -> str | None:
    copies = result.training_copies
    if copies is None:
        return None
    return f"{copies.overall:,} of {result.overall.documents:,} documents occur word for word in the training shards"


def _protocol(protocol: dict[str, Any], masked: bool) -> list[tuple[str, str | None]]:
    """The protocol as `what, how`; None where there is nothing to say."""
    model, tokenizer, prefix = protocol["model"], protocol["tokenizer"], protocol["prefix"]
    described = f"{model['model_type']}, {model['parameters']:,} parameters, {protocol['dtype']}"
    if prefix["id"] is None:
        before = "none: the first token of a document is not predicted"
    else:
        numbered = f"id {prefix['id']}" + ("" if prefix["given"].isdecimal() else f", {prefix['given']}")
        before = f"{prefix['token']} ({numbered})" if prefix["token"] else numbered
    limit, subsets, skipped = protocol["limit"], protocol["subsets"], protocol["skipped_lines"]
    first = "document" if limit == 1 else f"{limit:,} documents" if limit else None
    shards = [shard["name"] for shard in protocol["data"]]
    in_paper = "tokens over the paper's constant for the subset, which is the GPT-2 tokenizer's; not counted"
    return [
        ("model", described if model["path"] is None else f"{model['path']}: {described}"),
        ("weights", model["weights"]),
        ("tokenizer", f"{tokenizer['fingerprint'][:23]}, {tokenizer['backend']}"),
        ("windows", _windows(protocol, masked)),
        ("prefix", None if masked else before),
        ("bytes", in_paper if protocol.get("paper") else protocol["bytes"]),
        ("data", ", ".join(shards[:3]) + (f" and {len(shards) - 3:,} more" if len(shards) > 3 else "")),
        ("subsets", None if subsets is None else ", ".join(subsets)),
        ("limit", first and f"the first {first} of each subset"),
        ("skipped", f"{skipped:,} bad line{'s' if skipped > 1 else ''}" if skipped else None),
    ]


def _windows(protocol: dict[str, Any], masked: bool) -> str:
    length, context = protocol["max_length"], protocol.get("context_len", 1)
    if masked:
        sample = protocol.get("mlm_sample")
        masks = "each token" if sample is None else f"{sample:,} tokens drawn from each window"
        return f"{length:,} tokens, disjoint; {masks} masked one at a time"
    if context == 1:
        return f"{length:,} tokens, disjoint but the last; each token predicted once"
    return (
        f"{length:,} tokens, overlapping: each token from at least {context:,}; not comparable with disjoint windows, "
        f"whose figures are higher; {cost_factor(length, context):.3g} times the cost on long documents"
    )
