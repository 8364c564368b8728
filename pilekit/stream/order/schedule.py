"""`Schedule`: the shares of tokens that subsets have at each optimizer step.

An entry holds from its step on. With a ramp of r steps the shares change in a straight line, from those in force at the
entry's step to the entry's own r steps later. So an entry that cuts a ramp short begins where the ramp has come to.
Before the step of its first entry a schedule has no shares: there a run has one order of all documents, which has no
ramp at its end. A run without a schedule has the one that never begins, `NEVER`.

A schedule may change while a run goes on, but only at steps that are not yet reached. A `Revision` is a schedule with
the step before which it was in force. The lanes keep a window of documents open (pack/drawn_windows.py), and a window
that was begun under an earlier schedule stays what it was: its documents follow the schedule of its first step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from pilekit.errors import PilekitError, counted, shortened

MOST_STEPS = 1 << 38
"""No run has more optimizer steps."""


@dataclass(frozen=True)
class Schedule:
    """Shares by optimizer step, counted from 0.

    steps    the entries' steps, increasing
    entries  each entry's shares by exact name, above 0, with sum 1
    ramp     steps of a change from one entry to the next
    """

    steps: tuple[int, ...]
    entries: tuple[Mapping[str, float], ...]
    ramp: int = 0

    @property
    def begin(self) -> int:
        """The step of the first entry; after all steps if there is none."""
        return self.steps[0] if self.steps else MOST_STEPS + 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All subsets that have a share at some step, sorted."""
        return tuple(sorted(set().union(*self.entries)))

    @cached_property
    def _before(self) -> list[Mapping[str, float]]:
        """For each entry, the shares from which its ramp begins."""
        before = [self.entries[0]]
        for place in range(1, len(self.steps)):
            before.append(self._of(place - 1, before[-1], self.steps[place]))
        return before

    def _of(self, place: int, before: Mapping[str, float], step: int) -> Mapping[str, float]:
        """The shares of entry `place` at a step from its own on; its ramp begins from `before`."""
        own, passed = self.entries[place], step - self.steps[place]
        if place == 0 or passed >= self.ramp:
            return own
        part = passed / self.ramp
        return {name: _between(before.get(name, 0.0), own.get(name, 0.0), part) for name in {**before, **own}}

    def at(self, step: int) -> Mapping[str, float]:
        """The shares at a step >= 0; a subset that is not named has none. Before the first entry there are none."""
        if step < self.begin:
            return {}
        place = bisect_right(self.steps, step) - 1
        return self._of(place, self._before[place], step)

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """The steps, above 0, at which the shares jump, or a ramp begins or ends; increasing."""
        ends = {min(begin + self.ramp, end) for begin, end in zip(self.steps[1:], self.steps[2:], strict=False)}
        last = {self.steps[-1] + self.ramp} if len(self.steps) > 1 else set()
        return tuple(sorted({*self.steps[1:], *ends, *last}))

    def border_after(self, step: int) -> int | None:
        """The first border after a step."""
        place = bisect_right(self.borders, step)
        return self.borders[place] if place < len(self.borders) else None

    def changes_at(self, step: int) -> bool:
        """Whether a ramp is under way, so that the next step may have other shares."""
        place = bisect_right(self.steps, step) - 1
        return place > 0 and step < self.steps[place] + self.ramp

    def to_json(self) -> dict[str, Any]:
        """JSON types, for a state."""
        return {"ramp": self.ramp, "entries": [list(entry.values()) for entry in self.listed()]}

    def listed(self) -> list[dict[str, Any]]:
        """The entries, each {"step", "weights"}."""
        pairs = zip(self.steps, self.entries, strict=True)
        return [{"step": step, "weights": dict(shares)} for step, shares in pairs]

    @classmethod
    def from_json(cls, record: object) -> Schedule:
        """Read what `to_json` made, or None as `NEVER`; `msgspec.ValidationError` for anything else."""
        if record is None:
            return NEVER
        read = msgspec.convert(record, _Record)
        steps, entries = zip(*read.entries, strict=True)
        return cls(steps, entries, read.ramp)


NEVER = Schedule((), ())
"""The schedule of a run that has one order of all documents."""


class _Record(msgspec.Struct, frozen=True):
    ramp: int
    entries: list[tuple[int, dict[str, float]]]


class Revision(NamedTuple):
    """A schedule that was in force before step `until`; None: the present one."""

    until: int | None
    schedule: Schedule


def in_force(revisions: Sequence[Revision], step: int) -> Schedule:
    """The schedule of a window that begins at `step`. The last revision is the present one."""
    return next(schedule for until, schedule in revisions if until is None or step < until)


def check_extension(old: Schedule, new: Schedule, until: int) -> None:
    """PilekitError if `new` has other shares than `old` at a step before `until`, which was trained already."""
    # Between two neighbouring steps of this list both are straight lines, or constant.
    borders = (border for of in (old, new) for border in (of.begin, *of.borders))
    steps = {0, until - 1, *(border - less for border in borders for less in (0, 1))}
    for step in sorted(step for step in steps if 0 <= step < until):
        if (before := old.at(step)) != (now := new.at(step)) and _shares(before) != _shares(now):
            remedy = f"keep the entries and the ramp before step {until:,}, and change later ones"
            if old.begin >= until:
                remedy = f"begin the weights by step at step {until:,} or later"
            raise PilekitError(
                f"weights: {counted(until, 'step')} of the run are done, and step {step:,} had {_shown(before)}, not "
                f"{_shown(now)}; {remedy}"
            )


def _between(begin: float, end: float, part: float) -> float:
    return begin + (end - begin) * part


def _shares(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: share for name, share in shares.items() if share}


def _shown(shares: Mapping[str, float]) -> str:
    if not shares:
        return "one order of all documents"
    return shortened(", ".join(f"{name} {share:.4g}" for name, share in sorted(_shares(shares).items())), 120)
