"""Forward passes over as many inputs as memory holds.

A pass takes memory in proportion to its inputs, and batches come with their longest rows first, so that too large a
budget shows at the first of them. A batch that does not fit is halved until its first part does; the rest, and all
batches after it, are then made in parts of no more inputs. That costs the passes that failed, once, and no figure: the
sum of a row is its own, whatever stands beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from pilekit.errors import PilekitError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SIGNS = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED")
"""Of memory that ran out, in errors that have no class of their own: a CPU's, the driver's, C++'s, cuBLAS's."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory ran out, the machine's or a GPU's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


class Fitting(Generic[T]):
    """Makes forward passes over batches of rows, over parts of them where memory does not hold all.

    most   the inputs, padding counted, of which a pass is tried; None: nothing has failed yet
    """

    def __init__(self, inputs: Callable[[T], int]) -> None:
        """`inputs` is the length of a row. The longest of a batch comes first, and the others are padded to it."""
        self.inputs = inputs
        self.most: int | None = None
        self._told = False

    def __call__(self, batches: Sequence[list[T]], forward: Callable[[list[T]], list[float]]) -> Iterator[list[float]]:
        """The sums of the rows of each batch, in order.

        `forward` raises PilekitError from whatever a model raises. That of a single row that does not fit is raised
        again, and any that does not come from memory.
        """
        for batch in batches:
            yield self._sums(batch, forward)

    def _sums(self, batch: list[T], forward: Callable[[list[T]], list[float]]) -> list[float]:
        sums: list[float] = []
        while len(sums) < len(batch):
            longest = self.inputs(batch[len(sums)])
            rows = len(batch) if self.most is None else max(1, self.most // longest)
            part = batch[len(sums) : len(sums) + rows]
            found = _tried(part, forward)
            if found is None:
                self.most = len(part) // 2 * longest
                continue
            sums += found
            if self.most is not None and not self._told:
                self._told = True
                logger.warning(
                    "memory does not hold a forward pass over %s tokens; going on with at most %s in each",
                    f"{len(batch) * self.inputs(batch[0]):,}",
                    f"{self.most:,}",
                )
        return sums


def _tried(part: list[T], forward: Callable[[list[T]], list[float]]) -> list[float] | None:
    """The sums of a part; None if it is of several rows and memory does not hold them."""
    try:
        return forward(part)
    except PilekitError as error:
        if len(part) == 1 or not is_out_of_memory(error.__cause__):
            raise
    # The error is gone only here, and with it its traceback, which holds all that the pass had made until then.
    return None
