"""What is wrong with a shard, and where: the two errors that reading can meet.

`ShardDamage` is about bytes (a truncated frame, a wrong checksum, garbage), raised where only the position in the file
is known; the reader turns it into a `PilekitError` that names the line too. `BadLine` is one line that is no document.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pilekit.errors import visible

LISTED_BAD_LINES = 100
"""How many skipped lines are kept by name; the rest are only counted, so that memory stays bounded."""


class ShardDamage(Exception):
    """Bytes of a shard that cannot be decoded.

    reason   what is wrong, and the remedy, without the shard's name
    frame    number of the frame from 0; None for formats without frames
    byte     offset in the stored (compressed) file
    since    where the damage may begin, if all that is known is that it lies before `byte`: wrong bytes often decode to
             wrong text, which only a checksum at the frame's end tells
    """

    def __init__(self, reason: str, *, frame: int | None, byte: int, since: int | None = None):
        super().__init__(reason)
        self.reason = reason
        self.frame = frame
        self.byte = byte
        self.since = since

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.reason, self.frame, self.byte, self.since))

    def describe(self, path: str, line: int) -> str:
        """The one clear line: `line` is the number, from 1, of the first line that could not be read whole."""
        frame = "" if self.frame is None else f", frame {self.frame}"
        if self.since is None:
            place = f"byte {self.byte:,} of the file{frame}, line {line:,}"
        else:
            place = f"somewhere in bytes {self.since:,} to {self.byte:,} of the file{frame}, noticed at line {line:,}"
        return f"{visible(path)}: {self.reason} ({place})"


def _rebuild(reason: str, frame: int | None, byte: int, since: int | None) -> ShardDamage:
    return ShardDamage(reason, frame=frame, byte=byte, since=since)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a document: `line` counts from 1, as editors do."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{visible(self.path)}, line {self.line:,}: {self.reason}"


@dataclass(slots=True)
class SkippedLines:
    """The bad lines that `on_error="skip"` passed over: all counted, the first hundred listed."""

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
