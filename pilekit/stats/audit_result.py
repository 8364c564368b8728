"""`CorpusAudit`: published figures of a corpus, each beside what was counted, with a verdict.

equal         the count is the published figure
close         it is within the figure's tolerance
fits          a part of the corpus agrees with it: a bound holds, or a share is as a random part has it
differs       it is not; the row says what that would mean
not counted   only a whole corpus can be held to it, or something is missing, which the row names
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pilekit.corpus.manifest_parts import PublishedFigure
from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.display.table_result import Result, TableResult
from pilekit.errors import counted, shortened
from pilekit.shards.read.read_errors import SkippedLines

Verdict = Literal["equal", "close", "fits", "differs", "not counted"]

_NAMES = {
    "documents": "documents",
    "bytes": "bytes of text",
    "distinct": "distinct texts",
    "twins": "documents with an exact twin",
    "clusters": "texts that several documents have",
    "longest": "characters of the longest text",
    "shortest": "characters of the shortest text",
    "median": "median characters",
}


def name_of(figure: PublishedFigure) -> str:
    """What a figure is of, for people."""
    match figure.figure:
        case "length_share":
            return f"share of texts of {figure.characters:,} characters"
        case "copies":
            return f"copies of frequent text no. {figure.rank}"
        case "occurrences":
            return f'occurrences of "{shortened(figure.text, 40)}"'
        case "tokens":
            return f"tokens of {shortened(figure.tokenizer, 30)}"
        case "tokens_per_byte":
            return f"tokens of {shortened(figure.tokenizer, 30)} a byte"
        case "stated":
            return str(figure.name)
        case kind:
            return _NAMES[kind]


@dataclass(frozen=True, slots=True)
class AuditedFigure(Result):
    """A published figure and its count.

    name        what it is of
    split       "train", "val" or "test"
    published   as it was published; of some shards of the release, their share if it is known
    counted     None: it was not
    verdict     see the module
    note        why it was not counted, or what a difference would mean
    """

    name: str
    split: str
    published: float
    counted: float | None
    verdict: Verdict
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class CorpusAudit(TableResult):
    """The published figures of a manifest, beside those of a corpus.

    manifest   its name
    shards     the shards counted of each split
    figures    in the order of the manifest
    skipped    the bad lines passed over
    """

    ROWS: ClassVar[tuple[str, str]] = ("figure", "figures")

    manifest: str
    shards: dict[str, int]
    figures: tuple[AuditedFigure, ...]
    skipped: SkippedLines

    def to_dict(self) -> dict[str, Any]:
        """`{"manifest", "shards", "skipped", "figures": {split: {name: {"published", "counted", "verdict", ...}}}}`."""
        figures: dict[str, dict[str, Any]] = {}
        for figure in self.figures:
            row = figure.to_dict()
            figures.setdefault(row.pop("split"), {})[row.pop("name")] = row
        return {"manifest": self.manifest, "shards": self.shards, "skipped": self.skipped.count, "figures": figures}

    def _rows(self) -> dict[str, AuditedFigure]:
        """The figures by split and name: `audit["train documents"]`."""
        return {f"{figure.split} {figure.name}": figure for figure in self.figures}

    def __repr__(self) -> str:
        return f"CorpusAudit({self.manifest!r}: {_verdicts(self.figures)})"

    def table(self) -> FittedTable[AuditedFigure]:
        """A row per figure of the splits that were read; below, what differences would mean, and the sources."""
        rows = [row for row in self.figures if row.split in self.shards]
        sources = {source: place for place, source in enumerate(dict.fromkeys(row.source for row in rows), 1)}
        columns: list[Column[AuditedFigure]] = [
            Column("Figure", lambda row: f"{row.split}: {row.name} [{sources[row.source]}]", fold=40, justify="left"),
            Column("Published", lambda row: _shown(row.published)),
            Column("Here", lambda row: _shown(row.counted)),
            Column("Verdict", lambda row: row.note if row.counted is None else row.verdict, justify="left", fold=20),
        ]
        read = ", ".join(f"{counted(number, 'shard')} of {split}" for split, number in self.shards.items())
        differences = [f"{row.split}: {row.name}: {row.note}" for row in rows if row.verdict == "differs"]
        cited = [f"[{place}] {source}" for source, place in sources.items()]
        hidden = "" if len(rows) == len(self.figures) else f"; {len(self.figures) - len(rows)} of other splits"
        notes = [f"read {read}: {_verdicts(rows)}{hidden}", *differences, *cited]
        return FittedTable(rows, columns, notes=notes)


def _verdicts(figures: Sequence[AuditedFigure]) -> str:
    """How many figures have each verdict."""
    verdicts = [figure.verdict for figure in figures]
    return ", ".join(f"{each} {verdicts.count(each)}" for each in get_args(Verdict) if each in verdicts)


def _shown(number: float | None) -> str:
    if number is None:
        return DASH
    if number == round(number):
        return f"{number:,.0f}"
    return f"{number:,.1f}" if number >= 1000 else f"{number:.5f}".rstrip("0").rstrip(".")
