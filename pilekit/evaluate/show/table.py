"""The table of `pilekit bpb`: a row per subset, the overall figures last, and the protocol below.

An 80-column terminal has room for documents, bytes, tokens, the figure with its interval and one published column. In a
narrower terminal, numbers are rounded, and then columns are dropped. Labels and paths may be hostile, so they are shown
as rich `Text`, with control characters made visible.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.errors import counted, visible
from pilekit.evaluate.results.published import SECONDARY
from pilekit.evaluate.results.result import BitsPerByte, Score, Weighted
from pilekit.evaluate.score.windows import cost_factor
from pilekit.fitted_table import DASH, MOST_ROWS, SHORTEN, Column, FittedTable, rounded_bytes, rounded_count

APPROXIMATE = "~"
PSEUDO_TITLE = "Pseudo-BPB of a masked model: no code length, and not comparable with bits per byte of causal models"
POOLED, MIXTURE, PILE_MIXTURE = "Overall (pooled)", "Overall (mixture)", "Overall (Pile mixture)"
NOTES_INDENT, NOTES_WIDTH = 11, 100


class _Row(NamedTuple):
    """A row: a subset, all documents pooled, or the mixture.

    The paper weights its overall figures by the sizes of the subsets, so `published` overall is in the mixture's row.
    """

    name: str
    of: Score | Weighted
    copies: int | None
    published: Sequence[float | None]

    def interval(self, digits: int) -> str:
        if self.of.interval is None:
            return DASH
        low, high = self.of.interval
        return f"{APPROXIMATE * self.of.is_approximate}{low:.{digits}f}–{high:.{digits}f}"


def result_table(result: BitsPerByte, width: int) -> RenderableType:
    """The output of `pilekit bpb`; `width` in terminal cells."""
    table = figures_table(result)
    title = [Text(PSEUDO_TITLE, style="bold"), Text()] if result.is_masked else []
    fitted = table.fit(width)
    shown = {str(column.header) for column in fitted.columns}
    approximate = any(row.interval(1).startswith(APPROXIMATE) for row in (*table.rows, *table.totals))
    return Group(*title, fitted, Text(), notes_table(_notes(result, approximate, shown)))


def figures_table(result: BitsPerByte) -> FittedTable[_Row]:
    """The figures alone, as notebooks show them."""
    copies, published = result.training_copies, result.published.columns if result.published else ()
    copied = {} if copies is None else copies.subsets
    rows = [
        _Row(name, score, copied.get(name, 0), [of.subsets.get(name) for of in published])
        for name, score in result.subsets.items()
    ]
    totals = [_Row(POOLED, result.overall, None if copies is None else copies.overall, [None] * len(published))]
    if result.mixture is not None:
        name = PILE_MIXTURE if result.protocol["manifest"] == "pile" else MIXTURE
        totals.append(_Row(name, result.mixture, None, [of.overall for of in published]))
    interval, titles = "95 % interval", [_model_title(column.model) for column in published]

    def perplexity(row: _Row) -> str:
        return _figure(row.of.byte_perplexity)

    columns = [
        Column[_Row](group_title(result.protocol.get("by")), lambda row: row.name),
        _column("Documents", "Docs", lambda score, short: _count(score.documents, short)),
        _column("Bytes", "Bytes", lambda score, short: rounded_bytes(score.bytes, "" if short else "B")),
        _column("Tokens", "Tokens", lambda score, short: _count(score.tokens, short)),
        _column("Tok/B", "Tok/B", lambda score, short: _figure(score.tokens_per_byte, 3 if short else 4)),
        Column("pseudo-BPB" if result.is_masked else "BPB", lambda row: _figure(row.of.bpb)),
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


def notes_table(lines: Sequence[tuple[str, str]]) -> Table:
    """Lines of a name and its explanation, below a table."""
    table = Table(box=None, padding=0, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=NOTES_INDENT, style="dim")
    table.add_column(overflow="fold", max_width=NOTES_WIDTH)
    for what, how in lines:
        table.add_row(Text(what), Text(visible(how, 1000)))
    return table


def _column(title: str, short_title: str, cell: Callable[[Score, bool], str]) -> Column[_Row]:
    """A column of a score's numbers; `cell` formats them in full or short. The weighted row has none."""

    def of(short: bool) -> Callable[[_Row], str]:
        return lambda row: cell(row.of, short) if isinstance(row.of, Score) else DASH

    return Column(title, of(False), Column(short_title, of(True)))


def _count(number: int, short: bool) -> str:
    return rounded_count(number) if short else f"{number:,}"


def _figure(value: float | None, digits: int = 4) -> str:
    return DASH if value is None else f"{value:.{digits}f}" if value < 1e6 else f"{value:.2e}"


def _model_title(model: str) -> str:
    """The name in two lines, or in more if it is long, so that it is not much wider than a figure."""
    name = visible(model, 60)
    first, _, last = name.rpartition(" ")
    if max(len(first), len(last)) <= 12:
        return "\n".join(part for part in (first, last) if part)
    return "\n".join(textwrap.wrap(name, 12))


def _notes(result: BitsPerByte, approximate: bool, titles: set[str]) -> list[tuple[str, str]]:
    """The notes below a table with these column titles: the meaning of the figures, then the protocol."""
    lines: list[tuple[str, str | None]] = []
    if len(result.subsets) > MOST_ROWS:
        more = len(result.subsets) - MOST_ROWS
        lines.append(("rows", f"{more:,} further subsets are in the overall figures; --json lists them all."))
    if approximate:
        lines.append(
            (APPROXIMATE, "approximate, may be too narrow: under 100 documents, or a subset of the mixture has")
        )
    lines += [("warning", warning) for warning in result.warnings]
    lines += [("mixture", _mixture(result)), ("published", _published(result, titles))]
    if result.training_copies is not None:
        counts = f"{result.training_copies.overall:,} of {counted(result.overall.documents)}"
        lines.append(("in train", f"{counts} occur word for word in the training shards"))
    lines += _protocol(result.protocol, result.is_masked)
    return [(what, how) for what, how in lines if how is not None]


def _mixture(result: BitsPerByte) -> str | None:
    weighted = result.weighted
    if weighted is not None and (others := result.outside_pile):
        return f"none, as the Pile has no {_first_names(others)}; describe this corpus with --manifest"
    if weighted is None or not weighted.missing:
        return None
    return (
        f"weights of {100 * weighted.weight:.1f} % of the mixture, renormalised; no documents of "
        f"{_first_names(weighted.missing)}"
    )


def _first_names(names: Sequence[str]) -> str:
    """The first few names, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _published(result: BitsPerByte, titles: set[str]) -> str | None:
    if result.published is None:
        return None
    said = [result.published.differs]
    shown = [column for column in result.published.columns if _model_title(column.model) in titles]
    if copied := [column.model for column in shown if column.certainty == SECONDARY]:
        said.append(f"Read in a copy: {', '.join(copied)}.")
    if verified := [column for column in result.published.overall if column.certainty != SECONDARY]:
        figures = ", ".join(f"{column.model} {column.overall:.4f}" for column in verified)
        said.append(f"Overall only, on {verified[0].split}: {figures}.")
    return " ".join(said)


def _protocol(protocol: dict[str, Any], masked: bool) -> list[tuple[str, str | None]]:
    """The protocol as pairs of a name and its value; the value is None if there is nothing to say."""
    model, tokenizer, prefix = protocol["model"], protocol["tokenizer"], protocol["prefix"]
    described = f"{model['model_type']}, {model['parameters']:,} parameters, {protocol['dtype']}"
    numbered = f"id {prefix['id']}" + ("" if prefix["given"].isdecimal() else f", {prefix['given']}")
    before = f"{prefix['token']} ({numbered})" if prefix["token"] else numbered
    if prefix["id"] is None:
        before = "none: the first token of a document is not predicted"
    limit, subsets, skipped = protocol["limit"], protocol["subsets"], protocol["skipped_lines"]
    most = protocol.get("limit_bytes")
    limits = [limit and f"the first {'document' if limit == 1 else f'{limit:,} documents'} of each subset"]
    limits.append(most and f"documents of each subset until they have {most:,} bytes")
    shards = [shard["name"] for shard in protocol["data"]]
    in_paper = "tokens over the paper's constant for the subset, which is the GPT-2 tokenizer's; not counted"
    return [
        ("model", described if model["path"] is None else f"{model['path']}: {described}"),
        ("weights", model["weights"]),
        ("adapter", "{path}, {files}".format(**model["adapter"]) if "adapter" in model else None),
        ("tokenizer", f"{tokenizer['fingerprint'][:23]}, {tokenizer['backend']}"),
        ("windows", _windows(protocol, masked)),
        ("prefix", None if masked else before),
        ("bytes", in_paper if protocol["paper"] else "UTF-8 bytes of the raw text"),
        ("data", ", ".join(shards[:3]) + (f" and {len(shards) - 3:,} more" if len(shards) > 3 else "")),
        ("subsets", None if subsets is None else ", ".join(subsets)),
        ("limit", "; ".join(filter(None, limits)) or None),
        ("skipped", counted(skipped, "bad line") if skipped else None),
    ]


def _windows(protocol: dict[str, Any], masked: bool) -> str:
    length, context = protocol["max_length"], protocol["context_len"]
    if masked:
        sample = protocol["mlm_sample"]
        masks = "each token" if sample is None else f"{counted(sample, 'token')} drawn from each window"
        return f"{counted(length, 'token')}, disjoint; {masks} masked one at a time"
    if context == 1:
        return f"{length:,} tokens, disjoint but the last; each token predicted once"
    return (
        f"{length:,} tokens, overlapping: each token from at least {context:,}; not comparable with disjoint windows, "
        f"whose figures are higher; {cost_factor(length, context):.3g} times the cost on long documents"
    )
