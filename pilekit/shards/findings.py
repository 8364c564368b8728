"""What is wrong with shards, as data: a list that stays short however much is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pilekit.errors import visible

MOST_FINDINGS = 100
"""So many findings of one kind are listed for a shard; of the others only the number is told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    shard     the shard's name, e.g. `train/00.jsonl`
    problem   what is wrong and the remedy; safe to print
    frame     number of the frame from 0; None where that says nothing
    line      number of the line, or of the row of a Parquet file, from 1; of damage the first line that may be wrong
    byte      offset in the stored file; of damage the first byte that may be wrong
    """

    shard: str
    problem: str
    frame: int | None = None
    line: int | None = None
    byte: int | None = None


@dataclass
class FindingList:
    """Findings of one kind in one shard: the first hundred, and how many more there are."""

    shard: str
    more: str
    """What the others are called, with `{}` for their number."""
    listed: list[Finding] = field(default_factory=list)
    count: int = 0

    def add(self, problem: str, *, frame: int | None = None, line: int | None = None, byte: int | None = None) -> None:
        """Note one more."""
        self.count += 1
        if len(self.listed) < MOST_FINDINGS:
            self.listed.append(Finding(self.shard, problem, frame, line, byte))

    def forget_from(self, line: int) -> None:
        """Drop what was noted at or behind a line."""
        kept = [finding for finding in self.listed if finding.line is None or finding.line < line]
        if len(kept) < len(self.listed):
            self.listed, self.count = kept, len(kept)

    def findings(self) -> list[Finding]:
        """All that is to be told."""
        hidden = self.count - len(self.listed)
        return [*self.listed, *([Finding(self.shard, self.more.format(f"{hidden:,}"))] if hidden else [])]


def some_names(names: Iterable[str]) -> str:
    """The first five names, safe to print, and how many more there are."""
    shown = [visible(name, 120) for name in names]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5:,} more" if len(shown) > 5 else "")
