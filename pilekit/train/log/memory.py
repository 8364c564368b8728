"""`MemoryGrowth`: warns of a rank whose memory grows steadily, as with a leak, before it runs out.

Memory goes up and down within a step and while caches fill. So only the lowest memory in each span of steps counts: if
each of `SPANS` spans in a row is above the one before, rank 0 warns, once for each rank and kind of memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pilekit.fitted_table import rounded_bytes

logger = logging.getLogger(__name__)

SPAN = 50
"""Steps of a span."""
SPANS = 6
LEAST = 2**20
"""The fewest bytes by which a span must exceed the one before; `SHARE` is the smallest share."""
SHARE = 0.002


class MemoryGrowth:
    """Tracks the memory of all ranks after every step."""

    def __init__(self) -> None:
        self._steps = 0
        self._now: dict[tuple[str, int], int] = {}
        self._spans: deque[dict[tuple[str, int], int]] = deque(maxlen=SPANS)
        self._told: set[tuple[str, int]] = set()

    def write(self, step: int, memory: Mapping[str, Sequence[int]]) -> None:
        """Record the bytes of each rank after `step`, by kind of memory; log warnings."""
        for kind, of_ranks in memory.items():
            for rank, size in enumerate(of_ranks):
                self._now[kind, rank] = min(size, self._now.get((kind, rank), size))
        self._steps += 1
        if self._steps % SPAN:
            return
        self._spans.append(self._now)
        self._now = {}
        if len(self._spans) < SPANS:
            return
        for key in self._spans[-1].keys() - self._told:
            sizes = [span[key] for span in self._spans]
            if all(later - size >= max(LEAST, SHARE * size) for size, later in pairwise(sizes)):
                self._told.add(key)
                kind, rank = key
                logger.warning(
                    "step %s: the %s memory of rank %d grows steadily: %s %d steps ago, %s now. If it is about to run "
                    "out, stop the run and repeat the command: it resumes with the same results. log.memory = false "
                    "turns this off",
                    *(f"{step:,}", kind, rank, rounded_bytes(sizes[0]), SPAN * (SPANS - 1), rounded_bytes(sizes[-1])),
                )
