"""The progress of an evaluation, in stored bytes that are read and scored."""

from __future__ import annotations

from collections.abc import Callable

BYTES_PER_TOKEN = 1.3
READ_AHEAD = 4 << 20


class ScoringProgress:
    """Reports stored bytes as done once they are scored; reading is far ahead of scoring.

    A small shard is read whole before its first token is scored. So each rank counts a scored token as the stored bytes
    that a token usually takes, and counts bytes that were read long ago as scored.
    """

    def __init__(self, advance: Callable[[int], None], world_size: int = 1) -> None:
        self._advance, self._world_size = advance, world_size
        self._read = self._reported = self._tokens = 0

    def read(self, amount: int) -> None:
        """Count `amount` more stored bytes as read; the decoding thread calls this, so it reports nothing."""
        self._read += amount

    def scored(self, tokens: int) -> None:
        """Count `tokens` more as scored, and report."""
        self._tokens += tokens
        scored = int(self._tokens * BYTES_PER_TOKEN * self._world_size)
        self._report(min(self._read, max(scored, self._read - READ_AHEAD)))

    def all(self) -> None:
        """Report everything that was read."""
        self._report(self._read)

    def _report(self, done: int) -> None:
        if done > self._reported:
            self._advance(done - self._reported)
            self._reported = done
