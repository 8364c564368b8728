"""The progress of an evaluation in stored bytes, read and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class ScoringProgress:
    """Reports stored bytes as done when they are read and scored; reading is far ahead of scoring.

    A small shard is read whole before its first token is scored. So a scored token counts as the stored bytes that a
    token usually takes, on each rank, and bytes that were read long ago count as scored.
    """

    BYTES_PER_TOKEN = 1.3
    READ_AHEAD = 4 << 20

    def __init__(self, advance: Callable[[int], None], world_size: int = 1) -> None:
        self.advance = advance
        self.bytes_per_token = self.BYTES_PER_TOKEN * world_size
        self.bytes_read = self.told = self.tokens = 0

    def read(self, amount: int) -> None:
        """`amount` more stored bytes are read."""
        self.bytes_read += amount  # the decoding thread's only act here: what is due is told by the other alone

    def passing(self, batches: Iterable[T]) -> Iterator[T]:
        """`batches`; with each that is asked for, tell what is due."""
        for batch in batches:
            self.scored(0)
            yield batch

    def scored(self, tokens: int) -> None:
        """`tokens` more are scored."""
        self.tokens += tokens
        due = max(int(self.tokens * self.bytes_per_token), self.bytes_read - self.READ_AHEAD)
        self._tell(min(due, self.bytes_read))

    def all(self) -> None:
        """All that was read is dealt with."""
        self._tell(self.bytes_read)

    def _tell(self, due: int) -> None:
        if due > self.told:
            self.advance(due - self.told)
            self.told = due
