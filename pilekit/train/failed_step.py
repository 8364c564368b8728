"""What to say of a step that failed: which documents were in it, or that memory ran out.

A loss or gradient that is not a number is told before the optimizer moves, so the weights are still those of the step
before, and are saved: the next run goes on right there. All documents of the step go to `failed-step-N.json`.
"""

from __future__ import annotations

import math

import orjson
import torch

from pilekit.errors import PilekitError, visible
from pilekit.shards.atomic import write_atomically
from pilekit.stream import Batch
from pilekit.train.run_folder import RunFolder

SHOWN_DOCUMENTS = 5


def failed_step(
    run: RunFolder, step: int, loss: float, grad_norm: float, lr: float, batch: Batch, nll: torch.Tensor
) -> PilekitError:
    """Write RUN/failed-step-N.json and return the error to raise; `step` counts from 1, as in metrics.jsonl.

    `nll` holds the losses of the batch's targets, float32 [rows, seq_len - 1]. Named are the documents of the rows in
    which a loss is not finite; where all losses are finite and only the gradient is not, those of all rows.
    """
    bad = (~nll.isfinite()).any(dim=1).tolist()
    rows = list(zip(batch.documents(), bad, strict=True))
    suspect = [documents for documents, bad in rows if bad] or [documents for documents, _ in rows]
    named = list(dict.fromkeys(document for documents in suspect for document in documents))
    file = run.path / f"failed-step-{step}.json"
    content = {
        "step": step,
        "loss": repr(loss),
        "grad_norm": repr(grad_norm),
        "lr": lr,
        "rows": [
            {"documents": [{"shard": shard, "number": number} for shard, number in documents], "finite": not bad}
            for documents, bad in rows
        ],
    }
    with write_atomically(file) as out:
        out.write(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    what = f"the gradient's norm is {grad_norm}" if math.isfinite(loss) else f"the loss is {loss}"
    shown = ", ".join(f"{visible(shard, 100)} document {number}" for shard, number in named[:SHOWN_DOCUMENTS])
    more = f" and {len(named) - SHOWN_DOCUMENTS} more" if len(named) > SHOWN_DOCUMENTS else ""
    again = f"it goes on after step {step - 1}, or from an earlier checkpoint once that one is removed"
    return PilekitError(
        f"step {step}: {what}, in rows with {shown}{more} (all of them: {visible(str(file))}); lower optimizer.lr or "
        f"lengthen schedule.warmup and run again: {again if step > 1 else 'it begins anew'}"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; on a CPU torch has no class for that."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
