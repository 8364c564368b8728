"""Report a step that failed: its documents, or the reason of torch's error.

A loss or gradient that is not a number is found before the optimizer moves. So the weights are still those of the step
before, and are saved: the next run resumes there. `failed-step-N.json` names all documents of the step.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, is_out_of_memory, message_logger, shortened
from pilekit.stream.batch.batch import Batch
from pilekit.train.run_folder import RunFolder
from pilekit.workers.ranks import Ranks, lost_rank

logger = message_logger(__name__)

SHOWN_DOCUMENTS = 5


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step that moved no weight, because its loss or its gradient is not a number.

    number      from 1, as in metrics.jsonl
    loss        of the whole step, as is `grad_norm`: the same on all ranks
    batch, nll  this rank's rows, and the losses of their targets, float32 [rows, any]
    scale       the loss scale of fp16, at its floor; None in other precisions
    peek        the command that shows the step's documents
    """

    number: int
    loss: float
    grad_norm: float
    lr: float
    scale: float | None
    batch: Batch
    nll: torch.Tensor
    peek: str


def failed_step(run: RunFolder, ranks: Ranks, failed: FailedStep) -> PilekitError:
    """Write RUN/failed-step-N.json and return the error to raise on all ranks, which must call this together.

    The error names the documents in rows whose loss is not finite, or in all rows if only the gradient is not finite.
    """
    step, loss, grad_norm, scale = failed.number, failed.loss, failed.grad_norm, failed.scale
    bad = (~failed.nll.isfinite()).any(dim=1).tolist()
    parts = ranks.gather(list(zip(failed.batch.documents(), bad, strict=True)))
    rows = [row for part in parts for row in part]
    suspect = [documents for documents, bad in rows if bad] or [documents for documents, _ in rows]
    named = list(dict.fromkeys(document for documents in suspect for document in documents))
    file = run.path / f"failed-step-{step}.json"
    content = {
        "step": step,
        "loss": repr(loss),
        "grad_norm": repr(grad_norm),
        "lr": failed.lr,
        "rows": [
            {
                "rank": rank,
                "documents": [{"shard": shard, "number": number} for shard, number in documents],
                "finite": not bad,
            }
            for rank, part in enumerate(parts)
            for documents, bad in part
        ],
        "peek": failed.peek,
    }
    where = f" (all of them: {file})" if ranks.on_rank0(lambda: _is_written(file, content)) else ""
    failure, remedy = f"the gradient's norm is {grad_norm}", "lower optimizer.lr or lengthen schedule.warmup"
    if not math.isfinite(loss):
        failure = f"the loss is {loss}"
    if scale is not None:
        failure += f" even at the lowest loss scale, {scale:g}"
        remedy += ', or set precision.dtype = "bf16",'
    shown = ", ".join(f"{shortened(shard, 100)} document {number}" for shard, number in named[:SHOWN_DOCUMENTS])
    more = f" and {len(named) - SHOWN_DOCUMENTS} more" if len(named) > SHOWN_DOCUMENTS else ""
    start = "from the start"
    if step > 1:
        start = f"after step {step - 1}, or from an earlier checkpoint if that one is removed"
    return ranks.error(
        f"step {step}: {failure}, in rows with {shown}{more}{where}; {remedy} and run again, "
        f"which continues {start}; the step's documents are shown by: {failed.peek}"
    )


def _is_written(file: Path, content: dict[str, Any]) -> bool:
    """Write the file. A full disk is only a warning, because the step's error matters more."""
    try:
        with write_atomically(file) as out:
            out.write(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    except PilekitError as error:
        logger.warning("%s", error)
        return False
    return True


@contextmanager
def explaining_errors(ranks: Ranks) -> Iterator[None]:
    """Turn an error of torch that has a known cause into a PilekitError that names the cause."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if lost := lost_rank(error, ranks):
            raise lost from error
        dynamo = sys.modules.get("torch._dynamo.exc")  # importing it takes seconds
        if dynamo is not None and isinstance(error, dynamo.TorchDynamoException):
            cause = getattr(error, "inner_exception", error)
            reason = shortened(f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}", 200)
            raise PilekitError(
                f"rank {ranks.rank}: the model's blocks cannot be compiled here ({reason}); set parallel.compile = "
                "false, or another precision.dtype"
            ) from error
        if is_out_of_memory(error):
            raise PilekitError(
                f"rank {ranks.rank} is out of memory; lower train.micro_batch_size or data.seq_len, set "
                'parallel.activation_checkpoint = "full", or share more with parallel.zero'
            ) from error
        raise
