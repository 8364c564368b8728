"""What to say of a step that failed: which documents were in it, that memory ran out, that nothing could be compiled.

A loss or gradient that is not a number is told before the optimizer moves, so the weights are still those of the step
before, and are saved: the next run goes on right there. All documents of the step go to `failed-step-N.json`.
"""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from typing import Any

import orjson
import torch

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.stream import Batch
from pilekit.train.run_folder import RunFolder

logger = logging.getLogger(__name__)

SHOWN_DOCUMENTS = 5


def failed_step(
    run: RunFolder,
    ranks: Ranks,
    step: int,
    loss: float,
    grad_norm: float,
    lr: float,
    batch: Batch,
    nll: torch.Tensor,
    peek: str,
) -> PilekitError:
    """Write RUN/failed-step-N.json and return the error to raise, the same on all ranks, which call this together.

    step        from 1, as in metrics.jsonl
    loss        of the whole step, and so `grad_norm`: the same on all ranks
    batch, nll  this rank's rows, and the losses of their targets, float32 [rows, any]
    peek        the command that shows the step's documents

    Named are the documents of the rows in which a loss is not finite; where all losses are finite and only the gradient
    is not, those of all rows. A file that cannot be written (a full disk) is a warning: the step counts.
    """
    bad = (~nll.isfinite()).any(dim=1).tolist()
    parts = ranks.gather(list(zip(batch.documents(), bad, strict=True)))
    rows = [row for part in parts for row in part]
    suspect = [documents for documents, bad in rows if bad] or [documents for documents, _ in rows]
    named = list(dict.fromkeys(document for documents in suspect for document in documents))
    file = run.path / f"failed-step-{step}.json"
    content = {
        "step": step,
        "loss": repr(loss),
        "grad_norm": repr(grad_norm),
        "lr": lr,
        "rows": [
            {
                "rank": rank,
                "documents": [{"shard": shard, "number": number} for shard, number in documents],
                "finite": not bad,
            }
            for rank, part in enumerate(parts)
            for documents, bad in part
        ],
        "peek": peek,
    }
    where = f" (all of them: {visible(str(file))})" if ranks.on_rank0(lambda: _written(file, content)) else ""
    what = f"the gradient's norm is {grad_norm}" if math.isfinite(loss) else f"the loss is {loss}"
    shown = ", ".join(f"{visible(shard, 100)} document {number}" for shard, number in named[:SHOWN_DOCUMENTS])
    more = f" and {len(named) - SHOWN_DOCUMENTS} more" if len(named) > SHOWN_DOCUMENTS else ""
    again = f"it goes on after step {step - 1}, or from an earlier checkpoint once that one is removed"
    return ranks.error(
        f"step {step}: {what}, in rows with {shown}{more}{where}; lower optimizer.lr or lengthen schedule.warmup and "
        f"run again: {again if step > 1 else 'it begins anew'}; the step's documents are shown by: {peek}"
    )


def failed_compilation(error: BaseException) -> str | None:
    """What torch.compile could not do, in one line, if that is the error; None for any other."""
    dynamo = sys.modules.get("torch._dynamo.exc")  # seconds, where nothing is compiled
    if dynamo is None or not isinstance(error, dynamo.TorchDynamoException):
        return None
    cause = getattr(error, "inner_exception", error)
    first, *_ = str(cause).split("\n", 1)
    return visible(f"{type(cause).__name__}: {first}", 200)


def _written(file: Path, content: dict[str, Any]) -> bool:
    try:
        with write_atomically(file) as out:
            out.write(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    except PilekitError as error:
        logger.warning("%s", error)
        return False
    return True
