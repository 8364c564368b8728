"""The output of `pilekit bpb`, with and without `--compare`: tables, and notes on what the figures depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pilekit.display.fitted_table import MOST_ROWS, FittedTable, facts_table
from pilekit.errors import counted, shortened
from pilekit.evaluate.results.compare import LETTERS, Comparison
from pilekit.evaluate.results.intervals import FEWEST
from pilekit.evaluate.results.published import SECONDARY
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.score.windows import cost_factor
from pilekit.evaluate.show.tables import APPROXIMATE, CLEAR, FEW, differences_table, marks, model_title, verdict

PSEUDO_TITLE = "Pseudo-BPB of a masked model: no code length, and not comparable with bits per byte of causal models"
LONGEST_NOTE = 1000


def result_output(result: BitsPerByte, width: int) -> RenderableType:
    """The output of `pilekit bpb`; `width` in terminal cells."""
    table = result.table()
    title = [Text(PSEUDO_TITLE, style="bold"), Text()] if result.is_masked else []
    fitted = table.fit(width)
    shown = {str(column.header) for column in fitted.columns}
    approximate = any(row.interval(1).startswith(APPROXIMATE) for row in (*table.rows, *table.totals))
    return Group(*title, fitted, Text(), notes_table(_notes(result, approximate, shown)))


def comparison_output(comparison: Comparison) -> RenderableType:
    """The output of `pilekit bpb --compare`: each further model against the first, its verdict, and notes."""
    measure = "pseudo-BPB" if comparison.kind == "masked" else "BPB"
    parts: list[RenderableType] = []
    for letter, against in zip(LETTERS[1:], comparison.against, strict=False):
        title = Text(f"{measure} on the same documents: {letter} against A", style="italic")
        table = differences_table(against, letter, comparison.by)
        parts += [title, table, Text(), Text(verdict(against, letter)), Text()]
    return Group(*parts, notes_table(_comparison_notes(comparison)))


def notes_table(notes: Sequence[tuple[str, str]]) -> FittedTable[tuple[str, str]]:
    """The notes below a table, a name and a sentence each."""
    return facts_table([(name, shortened(note, LONGEST_NOTE)) for name, note in notes])


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
    lines += protocol_notes(result.protocol)
    return [(name, note) for name, note in lines if note is not None]


def _comparison_notes(comparison: Comparison) -> list[tuple[str, str]]:
    """The models' letters, the meaning of the marks, and warnings."""
    lines = list(zip(LETTERS, comparison.models, strict=False))
    shown_marks = " ".join(
        marks(difference)
        for against in comparison.against
        for difference in (against.overall, *against.subsets.values(), *filter(None, [against.weighted]))
    )
    if CLEAR in shown_marks:
        lines.append((CLEAR, "a clear difference: p at most 0.05, in subsets by Holm's method for all of them at once"))
    if FEW in shown_marks:
        lines.append((FEW, f"under {FEWEST} documents with text, or under 4 that differ: no interval"))
    if APPROXIMATE in shown_marks:
        lines.append((APPROXIMATE, "few documents decide the difference or hold most bytes: perhaps too narrow"))
    weights = {against.weight for against in comparison.against if against.weighted is not None}
    lines += [
        ("mixture", f"weights of {100 * weight:.1f} % of the mixture, renormalised")
        for weight in weights
        if weight < 0.9995
    ]
    if any(comparison.left_out):
        counts = zip(LETTERS, comparison.left_out, strict=False)
        left_out = ", ".join(f"{count:,} of {letter}" for letter, count in counts if count)
        lines.append(("documents", f"those that all scored; left out: {left_out}"))
    lines += [("mind", caution) for caution in comparison.cautions]
    return lines


def _mixture(result: BitsPerByte) -> str | None:
    weighted = result.weighted
    if weighted is not None and (foreign_labels := result.outside_pile):
        return f"none, as the Pile has no {_first_names(foreign_labels)}; describe this corpus with --manifest"
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
    sentences = [result.published.differs]
    shown = [column for column in result.published.columns if model_title(column.model) in titles]
    if copied := [column.model for column in shown if column.certainty == SECONDARY]:
        sentences.append(f"Read in a copy: {', '.join(copied)}.")
    if verified := [column for column in result.published.overall if column.certainty != SECONDARY]:
        figures = ", ".join(f"{column.model} {column.overall:.4f}" for column in verified)
        sentences.append(f"Overall only, on {verified[0].split}: {figures}.")
    return " ".join(sentences)


def protocol_notes(protocol: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The protocol as pairs of a name and its value; the value is None if there is nothing to say."""
    model, tokenizer, prefix = protocol["model"], protocol["tokenizer"], protocol["prefix"]
    masked, sequences, sample = protocol["kind"] == "masked", protocol.get("sequences"), protocol.get("sample")
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
        ("windows", None if sequences else _windows(protocol, masked)),
        ("sequences", sequences and _sequences(**sequences)),
        ("prefix", None if masked or sequences else before),
        ("bytes", None if sequences else in_paper if protocol["paper"] else "UTF-8 bytes of the raw text"),
        ("data", ", ".join(shards[:3]) + (f" and {len(shards) - 3:,} more" if len(shards) > 3 else "")),
        ("subsets", None if subsets is None else ", ".join(subsets)),
        ("sample", "{share} of the documents, seed {seed}".format(**sample) if sample else None),
        ("limit", "; ".join(filter(None, limits)) or None),
        ("skipped", counted(skipped, "bad line") if skipped else None),
    ]


def _sequences(prompt: int, continuation: int, every: str | int) -> str:
    where = "at a document's start" if every == "first" else f"at each {every:,} tokens of a document"
    return f"{where}: a prompt of {counted(prompt, 'token')}, nothing before it, and {continuation:,} to continue"


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
