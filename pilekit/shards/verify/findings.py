"""What is wrong with shards, as data: a list that stays short however much is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pilekit.errors import visible

State = TypeVar("State")

MOST_FINDINGS = 100
"""So many findings of one kind are listed for a shard; of the others only the number is told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    shard     the shard's name, e.g. `train/00.jsonl`
    problem   what is wrong and the remedy; safe to print
    frame     number of the frame, or of the row group of a Parquet file, from 0; None where that says nothing
    line      number of the line, or of the row of a Parquet file, from 1; of damage the first line that may be wrong
    byte      offset in the stored file where that frame begins, of plain text the line; of damage the first byte that
              may be wrong
    """

    shard: str
    problem: str
    frame: int | None = None
    line: int | None = None
    byte: int | None = None


class StateBefore(Generic[State]):
    """What was known before the last frame of which something was noted.

    A checksum stands at the end of its frame, so what was noted of the last frame may have to be forgotten; of those
    before it nothing has, as the decoder came past their ends.
    """

    def __init__(self) -> None:
        self._frame = -1
        self._state: State | None = None

    def enter(self, frame: int, state: Callable[[], State]) -> None:
        """Something is to be noted of this frame; `state` gives what is known until now."""
        if frame > self._frame:
            self._frame, self._state = frame, state()

    def of(self, frame: int) -> State | None:
        """What was known before this frame; None if nothing was noted since."""
        return self._state if self._frame >= frame else None


@dataclass
class FindingList:
    """Findings of one kind in one shard: the first hundred, and how many more there are."""

    shard: str
    more: str
    """What the others are called, with `{}` for their number."""
    listed: list[Finding] = field(default_factory=list)
    count: int = 0
    before: StateBefore[tuple[int, int]] = field(default_factory=StateBefore)

    def add(self, problem: str, *, frame: int | None = None, line: int | None = None, byte: int | None = None) -> None:
        """Note one more."""
        if frame is not None:
            self.before.enter(frame, lambda: (len(self.listed), self.count))
        self.count += 1
        if len(self.listed) < MOST_FINDINGS:
            self.listed.append(Finding(self.shard, problem, frame, line, byte))

    def forget_from(self, frame: int) -> None:
        """Drop what was noted of a frame, if it is the last of which something was noted."""
        if (before := self.before.of(frame)) is not None:
            del self.listed[before[0] :]
            self.count = before[1]

    def findings(self) -> list[Finding]:
        """All that is to be told."""
        hidden = self.count - len(self.listed)
        return [*self.listed, *([Finding(self.shard, self.more.format(f"{hidden:,}"))] if hidden else [])]


def some_names(names: Iterable[str]) -> str:
    """The first five names, safe to print, and how many more there are."""
    shown = [visible(name, 120) for name in names]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5:,} more" if len(shown) > 5 else "")
