"""The table of `pilekit bpb`: a row per subset, the overall figures last, and below them the protocol.

An 80-column terminal holds documents, bytes, tokens, the figure with its interval and one published column; a narrower
one rounds numbers, then loses columns. Labels and model folders may be hostile: what comes from them is shown as rich
`Text`, with control characters made visible. A title says that a masked model's figures are of another kind.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.errors import visible
from pilekit.evaluate.results.published import PublishedColumn
from pilekit.evaluate.results.result import BitsPerByte, Score, Weighted
from pilekit.evaluate.score.windows import cost_factor
from pilekit.fitted_table import DASH, MOST_ROWS, SHORTEN, Column, FittedTable, rounded_bytes, rounded_count

APPROXIMATE = "~"
PSEUDO_TITLE = "Pseudo-BPB of a masked model: no code length, and not comparable with bits per byte of causal models"
POOLED, MIXTURE, PILE_MIXTURE = "Overall (pooled)", "Overall (mixture)", "Overall (Pile mixture)"
NOTES_INDENT, NOTES_WIDTH = 11, 100


class _Row(NamedTuple):
    """A row: of a subset, of all pooled, or (`score` None) of all weighted."""

    name: str
    score: Score | None
    weighted: Weighted | None = None
    is_overall: bool = False


def result_table(result: BitsPerByte, width: int) -> RenderableType:
    """What `pilekit bpb` prints; `width` in terminal cells."""
    table = figures_table(result)
    title = [Text(PSEUDO_TITLE, style="bold"), Text()] if result.is_masked else []
    fitted = table.fit(width)
    shown = {str(column.header) for column in fitted.columns}
    approximate = any(_interval(row, 1).startswith(APPROXIMATE) for row in (*table.rows, *table.totals))
    return Group(*title, fitted, Text(), notes_table(_notes(result, approximate, shown)))


def figures_table(result: BitsPerByte) -> FittedTable[_Row]:
    """The figures alone, which notebooks show."""
    totals = [_Row(POOLED, result.overall, is_overall=True)]
    if result.weighted is not None:
        name = PILE_MIXTURE if result.protocol.get("manifest") == "pile" else MIXTURE
        totals.append(_Row(name, None, result.weighted, is_overall=True))
    columns = [
        Column[_Row]("Subset", lambda row: row.name),
        _column("Documents", "Docs", lambda score, short: _count(score.documents, short)),
        _column("Bytes", "Bytes", lambda score, short: rounded_bytes(score.bytes, "" if short else "iB")),
        _column("Tokens", "Tokens", lambda score, short: _count(score.tokens, short)),
        _column("Tok/B", "Tok/B", lambda score, short: _figure(score.tokens_per_byte, 3 if short else 4)),
        Column("pseudo-BPB" if result.is_masked else "BPB", lambda row: _figure(_bpb(row), 4)),
        Column(INTERVAL, lambda row: _interval(row, 4), Column(INTERVAL, lambda row: _interval(row, 3))),
        Column(
            "Byte\nperplexity",
            lambda row: _figure(_perplexity(row), 4),
            Column("Byte\nppl.", lambda row: _figure(_perplexity(row), 4)),
        ),
        _column("Nats/\ntoken", "Nats/\ntoken", lambda score, _: _figure(score.nats_per_token, 4)),
    ]
    if (copies := result.training_copies) is not None:

        def copied(row: _Row) -> str:
            if row.score is None:
                return DASH
            return f"{copies.overall if row.is_overall else copies.subsets.get(row.name, 0):,}"

        columns.append(Column("In\ntrain", copied))
    published = [] if result.published is None else result.published.columns
    titles = [_model_title(column.model) for column in published]
    columns += [Column(title, _published(column)) for title, column in zip(titles, published, strict=True)]
    priority = [*titles[:0:-1], SHORTEN, "Nats/\ntoken", "Byte\nperplexity", "Tok/B", "Tokens", "Bytes", *titles[:1]]
    priority += ["Documents", "In\ntrain", INTERVAL]
    return FittedTable([_Row(*item) for item in result.subsets.items()], columns, totals, priority)


def notes_table(lines: Sequence[tuple[str, str]]) -> Table:
    """Lines of `what  how` below a table."""
    table = Table(box=None, padding=0, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=NOTES_INDENT, style="dim")
    table.add_column(overflow="fold", max_width=NOTES_WIDTH)
    for what, how in lines:
        table.add_row(Text(what), Text(visible(how, 1000)))
    return table


INTERVAL = "95 % interval"


def _column(title: str, short_title: str, cell: Callable[[Score, bool], str]) -> Column[_Row]:
    """A column of a score's numbers; `cell` makes them in full or short. The weighted row has none."""

    def of(*, short: bool) -> Callable[[_Row], str]:
        return lambda row: DASH if row.score is None else cell(row.score, short)

    return Column(title, of(short=False), Column(short_title, of(short=True)))


def _published(column: PublishedColumn) -> Callable[[_Row], str]:
    """The paper weights its overall figures by the sizes of the subsets: they stand beside the mixture's."""

    def cell(row: _Row) -> str:
        if not row.is_overall:
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


def _notes(result: BitsPerByte, any_approximate: bool, titles: set[str]) -> list[tuple[str, str]]:
    """What stands below the columns of these titles: what the figures are, then the protocol."""
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
    return [(what, how) for what, how in lines if how is not None]


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
