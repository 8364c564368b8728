"""Report a step that failed: the command that shows its documents, or the reason of torch's error.

A loss or gradient that is not a number is found before the optimizer moves. So the weights are still those of the step
before, and are saved: the next run resumes there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pilekit.engine.ranks import Ranks, lost_rank
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.model.device import is_out_of_memory


def failed_step(step: int, loss: float, grad_norm: float, peek: str) -> str:
    """The error of a step whose loss or gradient, over all ranks, is not a number.

    step   from 1, as in metrics.jsonl
    peek   the command that shows the step's documents
    """
    what = f"the gradient's norm is {grad_norm}" if math.isfinite(loss) else f"the loss is {loss}"
    start = "from the start"
    if step > 1:
        start = f"after step {step - 1}, or from an earlier checkpoint if that one is removed"
    return (
        f"step {step}: {what}; lower optimizer.lr or lengthen schedule.warmup and run again, which continues {start}; "
        f"the step's documents are shown by: {peek}"
    )


@contextmanager
def explained(ranks: Ranks) -> Iterator[None]:
    """Inside, an error of torch that has a known cause is a PilekitError that names it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if lost := lost_rank(error, ranks):
            raise lost from error
        dynamo = sys.modules.get("torch._dynamo.exc")  # importing it takes seconds
        if dynamo is not None and isinstance(error, dynamo.TorchDynamoException):
            cause = getattr(error, "inner_exception", error)
            what = visible(f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}", 200)
            raise PilekitError(
                f"rank {ranks.rank}: the model's blocks cannot be compiled here ({what}); set parallel.compile = "
                "false, or another precision.dtype"
            ) from error
        if is_out_of_memory(error):
            raise PilekitError(
                f"rank {ranks.rank} is out of memory; lower train.micro_batch_size or data.seq_len, set "
                'parallel.activation_checkpoint = "full", or share more with parallel.zero'
            ) from error
        raise
