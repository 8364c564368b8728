"""The errors that reading can meet: damaged bytes, too long lines, and bad lines.

`ShardDamage` is about stored bytes (a truncated frame, a wrong checksum, garbage). It is raised where only the position
in the file is known; `locate_errors` turns it into a `PilekitError` that also names the line, and `LineTooLong` too.
`BadLine` is one line that is not a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pilekit.corpus.shard import STANDARD_INPUT, Shard
from pilekit.errors import visible

LISTED_BAD_LINES = 100
"""How many skipped lines are listed; the rest are only counted, so that memory stays bounded."""


class ShardDamage(Exception):
    """Stored bytes that cannot be decoded.

    reason   the problem and the remedy, without the shard's name
    frame    number of the frame from 0; None for formats without frames
    byte     offset in the stored (compressed) file
    since    where the damage may begin, if it lies somewhere before `byte`: damaged bytes often decode to wrong text,
             which only the checksum at the frame's end reveals
    """

    def __init__(self, reason: str, frame: int | None, byte: int, since: int | None = None):
        super().__init__(reason, frame, byte, since)
        self.reason, self.frame, self.byte, self.since = reason, frame, byte, since

    def __str__(self) -> str:
        return self.reason

    def describe(self, path: str, line: int) -> str:
        """The message for users; `line` is the number, from 1, of the first line that could not be read whole."""
        frame = "" if self.frame is None else f", frame {self.frame}"
        if self.since is None:
            place = f"byte {self.byte:,} of the file{frame}, line {line:,}"
        else:
            place = f"somewhere in bytes {self.since:,} to {self.byte:,} of the file{frame}, noticed at line {line:,}"
        return f"{visible(path)}: {self.reason} ({place})"


class LineTooLong(Exception):
    """A line is too long; `lines_before` whole lines lie between it and the last block that was yielded."""

    def __init__(self, lines_before: int):
        super().__init__(lines_before)
        self.lines_before = lines_before


class BadRecord(Exception):
    """A record that is not a document, with the reason."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a document; `line` counts from 1, as editors do."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{visible(self.path)}, line {self.line:,}: {self.reason}"


@dataclass(slots=True)
class SkippedLines:
    """The bad lines that `on_error="skip"` skipped: all are counted, the first hundred are listed."""

    count: int = 0
    examples: list[BadLine] = field(default_factory=list)

    def add(self, bad: BadLine) -> None:
        """Count one bad line."""
        self.count += 1
        if len(self.examples) < LISTED_BAD_LINES:
            self.examples.append(bad)

    def merge(self, other: SkippedLines) -> None:
        """Add the bad lines of another shard."""
        self.count += other.count
        self.examples.extend(other.examples[: LISTED_BAD_LINES - len(self.examples)])

    def listed(self) -> list[list[Any]]:
        """The examples as lists of path, line and reason, for a note."""
        return [[bad.path, bad.line, bad.reason] for bad in self.examples]

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> SkippedLines:
        """The bad lines of a note: `skipped` counts them, and `bad_lines` lists them."""
        return cls(note["skipped"], [BadLine(*bad) for bad in note["bad_lines"]])

    @classmethod
    def from_notes(cls, notes: Mapping[str, Mapping[str, Any]], shards: Iterable[Shard]) -> SkippedLines:
        """The bad lines of all shards, from the note about each."""
        skipped = cls()
        for shard in shards:
            note, path = notes[shard.name], shard.name if shard.path == STANDARD_INPUT else shard.path
            skipped.merge(cls(note["skipped"], [BadLine(path, *bad) for bad in note["bad_lines"]]))
        return skipped
