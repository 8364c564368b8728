"""Warnings while a model trains: waiting for data, a loss that stays high, memory that grows.

No warning stops the run: people judge whether a loss will come down again. Each warning names the step and the command
that shows the step's documents. Figures are compared with earlier figures of the same run, so a large model or a hard
corpus causes none:

    stall       more than a fifth of the last 50 steps' time was spent waiting for data. Warned of once. The first steps
                of a start do not count, because they read the lanes' first windows
    divergence  the mean loss of 50 steps has been far above the lowest such mean for 50 steps in a row: by a quarter,
                and at least half a nat
    memory      the lowest memory of a rank in 50 steps has been above that of the 50 steps before, in each of six such
                spans in a row, as with a leak. Memory goes up and down within a step and while caches fill, so only the
                lowest counts. Warned of once for each rank and kind of memory

A resumed run reads the earlier losses from metrics.jsonl.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pilekit.display.fitted_table import rounded_bytes
from pilekit.errors import message_logger
from pilekit.train.log.metrics import StepMetrics

if TYPE_CHECKING:
    from pilekit.stream.pile_stream import PileStream  # imports torch, which takes seconds

logger = message_logger(__name__)

SPAN = 50
"""Steps over which time and loss are averaged and the lowest memory is taken; also the steps for which a loss must stay
high."""
FIRST_STEPS = 10
"""Steps after a start whose waiting does not count."""
STALL = 0.2
SPANS = 6
"""Spans of `SPAN` steps in which memory must grow."""
LEAST = 2**20
"""The fewest bytes by which a span must exceed the one before. `SHARE` is the smallest share."""
SHARE = 0.002


class Watch:
    """Checks every step's figures on rank 0, and warns.

    peek      returns the command that shows the documents of a step
    remedy    advice against waiting for data, see `against_waiting`
    history   the figures of the steps before this start
    """

    def __init__(self, peek: Callable[[int], str], remedy: str, history: Iterable[StepMetrics] = ()) -> None:
        self._peek, self._remedy = peek, remedy
        self._waits: deque[tuple[int, float, float]] = deque(maxlen=SPAN)  # step, seconds waited, seconds in all
        self._started, self._has_warned_of_stall = 0, False
        self._losses: deque[tuple[int, float]] = deque(maxlen=2 * SPAN)
        self._lowest, self._far_for = float("inf"), 0
        for metrics in history:
            self._divergence(metrics)

    def write(self, metrics: StepMetrics) -> None:
        """Check a step's figures and log warnings."""
        for message in (self._stall(metrics), self._divergence(metrics)):
            if message:
                logger.warning("%s", message)

    def _stall(self, metrics: StepMetrics) -> str:
        self._started += 1
        if self._started <= FIRST_STEPS or self._has_warned_of_stall:
            return ""
        self._waits.append((metrics.step, metrics.data_wait * metrics.step_seconds, metrics.step_seconds))
        share = sum(waited for _, waited, _ in self._waits) / (sum(seconds for *_, seconds in self._waits) or 1.0)
        if len(self._waits) < SPAN or share <= STALL:
            return ""
        self._has_warned_of_stall = True
        longest, _, _ = max(self._waits, key=lambda wait: wait[1])
        return (
            f"steps {self._waits[0][0]:,} to {metrics.step:,} spent {share:.0%} of their time waiting for data, step "
            f"{longest:,} the longest; {self._remedy}; its documents are shown by: {self._peek(longest)}"
        )

    def _divergence(self, metrics: StepMetrics) -> str:
        if metrics.loss is None:
            return ""
        self._losses.append((metrics.step, metrics.loss))
        if len(self._losses) < SPAN:
            return ""
        mean = statistics.fmean(loss for _, loss in list(self._losses)[-SPAN:])
        limit = self._lowest + max(0.5, self._lowest / 4)
        self._far_for = self._far_for + 1 if mean > limit else 0
        self._lowest = min(self._lowest, mean)
        if self._far_for != SPAN:
            return ""
        first = next((step for step, loss in self._losses if loss > limit), metrics.step)
        return (
            f"step {metrics.step:,}: the loss stays far above its lowest: {mean:.3f} over the last {SPAN} steps, once "
            f"{self._lowest:.3f}; high since step {first:,}. Lower optimizer.lr, lengthen schedule.warmup or lower "
            "train.clip_norm, and resume from an earlier checkpoint; the documents of that step are shown by: "
            f"{self._peek(first)}"
        )


class MemoryGrowth:
    """Tracks the memory of all ranks after every step."""

    def __init__(self) -> None:
        self._steps = 0
        self._lowest: dict[tuple[str, int], int] = {}  # in the present span, by kind of memory and rank
        self._spans: deque[dict[tuple[str, int], int]] = deque(maxlen=SPANS)
        self._warned: set[tuple[str, int]] = set()

    def write(self, step: int, memory: Mapping[str, Sequence[int]]) -> None:
        """Record the bytes of each rank after `step`, by kind of memory; log warnings."""
        for kind, of_ranks in memory.items():
            for rank, size in enumerate(of_ranks):
                self._lowest[kind, rank] = min(size, self._lowest.get((kind, rank), size))
        self._steps += 1
        if self._steps % SPAN:
            return
        self._spans.append(self._lowest)
        self._lowest = {}
        if len(self._spans) < SPANS:
            return
        for key in self._spans[-1].keys() - self._warned:
            sizes = [span[key] for span in self._spans]
            if all(later - size >= max(LEAST, SHARE * size) for size, later in pairwise(sizes)):
                self._warned.add(key)
                kind, rank = key
                logger.warning(
                    "step %s: the %s memory of rank %d grows steadily: %s %d steps ago, %s now. If it is about to run "
                    "out, stop the run and repeat the command: it resumes with the same results. log.memory = false "
                    "turns this off",
                    *(f"{step:,}", kind, rank, rounded_bytes(sizes[0]), SPAN * (SPANS - 1), rounded_bytes(sizes[-1])),
                )


def against_waiting(stream: PileStream) -> str:
    """A remedy that makes the batches of `stream` come faster."""
    if any("://" in str(shard.path) for shard in stream.corpus.shards):
        return "the shards are read over the network: copy them to a local disk"
    if stream.grid.plan == "sequential":
        return (
            "each shard is read from its beginning by one lane: `pilekit reframe` the shards, so that any part is read"
        )
    return "set data.workers, or more of them, so that other processes make batches while this one computes"
