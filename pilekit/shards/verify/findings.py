"""Findings: the problems of shards as data, in lists of bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pilekit.display.fitted_table import DASH, Column, FittedTable
from pilekit.errors import visible

LONGEST_SHARD, LONGEST_PROBLEM = 28, 1000
"""The most terminal cells of a line with the name of a shard, and with a problem."""
MOST_FINDINGS = 100
"""A shard lists this many findings of one kind and counts the others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a shard.

    shard     the shard's name, e.g. `train/00.jsonl`
    problem   the problem and the remedy; safe to print
    frame     number of the frame (of Parquet, the row group) from 0; None if there is none
    line      number of the line (of Parquet, the row) from 1; of damage, the first line that may be wrong
    byte      offset in the stored file: where the frame begins or, in plain text, the line; of damage, the first byte
              that may be wrong
    """

    shard: str
    problem: str
    frame: int | None = None
    line: int | None = None
    byte: int | None = None


@dataclass
class FindingList:
    """Findings of one kind in one shard: the first hundred, and how many more there are.

    more   describes the others, with `{}` for their number
    """

    shard: str
    more: str
    listed: list[Finding] = field(default_factory=list)
    hidden: int = 0

    def add(self, problem: str, *, frame: int | None = None, line: int | None = None, byte: int | None = None) -> None:
        """Note one more."""
        if len(self.listed) < MOST_FINDINGS:
            self.listed.append(Finding(self.shard, problem, frame, line, byte))
        else:
            self.hidden += 1

    def findings(self) -> list[Finding]:
        """The list and, if there are more, a finding with their number."""
        more = Finding(self.shard, self.more.format(f"{self.hidden:,}"))
        return [*self.listed, more] if self.hidden else self.listed


def findings_table(findings: Sequence[Finding]) -> FittedTable[Finding]:
    """A row for each finding; places that no finding has are left out, and long problems take several lines."""

    def place(name: str) -> Column[Finding]:
        def cell(finding: Finding) -> str:
            number = getattr(finding, name)
            return DASH if number is None else f"{number:,}"

        return Column(name.capitalize(), cell)

    names = [name for name in ("frame", "line", "byte") if any(getattr(row, name) is not None for row in findings)]
    shard = Column[Finding]("Shard", lambda finding: finding.shard, fold=LONGEST_SHARD)
    problem = Column[Finding]("Problem", lambda finding: finding.problem, justify="left", fold=LONGEST_PROBLEM)
    return FittedTable(findings, [shard, *map(place, names), problem], most_rows=len(findings))


def some_names(names: Iterable[str]) -> str:
    """The first five names, safe to print, and how many more there are."""
    shown = [visible(name, 120) for name in names]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5:,} more" if len(shown) > 5 else "")
