"""Forward passes over as many rows as fit into memory.

The memory of a pass grows with its inputs, and the first batch has the longest rows, so a batch size that is too large
fails at once. A batch that does not fit is halved until its first part fits. Its other rows, and all later batches, are
then scored in parts of that size. The only cost is the failed passes, once. No figure changes, because each row has its
own sum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pilekit.errors import PilekitError
from pilekit.evaluate.model.device import is_out_of_memory
from pilekit.evaluate.score.batching import Float64, Forward, Windows

logger = logging.getLogger(__name__)


class Fitting:
    """A `Share` for one process: it makes all passes, in parts if a batch does not fit into memory."""

    def __init__(self) -> None:
        self._most: int | None = None  # inputs of a pass, padding counted; None: every batch has fitted so far
        self._warned = False

    def __call__(self, batches: Sequence[Windows], forward: Forward) -> Iterator[list[Float64]]:
        """The losses of each batch, in order; an error of `forward` is raised, unless several rows need less memory."""
        for batch in batches:
            losses: list[Float64] = []
            while len(losses) < len(batch):
                longest = batch[len(losses)].length
                rows = len(batch) if self._most is None else max(1, self._most // longest)
                part = batch[len(losses) : len(losses) + rows]
                found = _tried(part, forward)
                if found is None:
                    self._most = len(part) // 2 * longest
                    continue
                losses += found
                if self._most is not None and not self._warned:
                    self._warned = True
                    logger.warning(
                        "memory does not hold a forward pass over %s tokens; continuing with at most %s in each",
                        f"{len(batch) * batch[0].length:,}",
                        f"{self._most:,}",
                    )
            yield losses


def _tried(part: Windows, forward: Forward) -> list[Float64] | None:
    """The losses of a part; None if it has several rows that do not fit into memory."""
    try:
        return forward(part)
    except PilekitError as error:
        if len(part) == 1 or not is_out_of_memory(error.__cause__):
            raise
    # Leaving the handler frees the error and its traceback, which holds all tensors of the failed pass.
    return None
