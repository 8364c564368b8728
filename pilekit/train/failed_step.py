"""What to say of a step whose loss or gradient is not a number, so that the documents behind it can be looked at.

The weights are still those of the step before: the optimizer has not moved. Nothing is saved, because the last
checkpoint is the better place to go on from; the whole list of the step's documents goes to `failed-step-N.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import torch

from pilekit.errors import PilekitError, visible
from pilekit.shards.atomic import write_atomically
from pilekit.stream import Batch

SHOWN_DOCUMENTS = 5


def failed_step(
    run: Path,
    step: int,
    loss: float,
    grad_norm: float,
    lr: float,
    batches: Sequence[Batch],
    nlls: Sequence[torch.Tensor],
) -> PilekitError:
    """Write RUN/failed-step-N.json and return the error to raise; `step` counts from 1, as in metrics.jsonl.

    `nlls` holds per micro-batch the losses of its targets, float32 [rows, seq_len - 1]. Named are the documents of the
    rows in which a loss is not finite; where all losses are finite and only the gradient is not, those of all rows.
    """
    rows = [
        (documents, bool(bad))
        for batch, nll in zip(batches, nlls, strict=True)
        for documents, bad in zip(batch.documents(), (~nll.isfinite()).any(dim=1).tolist(), strict=True)
    ]
    suspect = [documents for documents, bad in rows if bad] or [documents for documents, _ in rows]
    named = list(dict.fromkeys(document for documents in suspect for document in documents))
    file = run / f"failed-step-{step}.json"
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
    what = f"the loss is {loss}" if loss != loss or abs(loss) == float("inf") else f"the gradient's norm is {grad_norm}"
    shown = ", ".join(f"{visible(shard, 100)} document {number}" for shard, number in named[:SHOWN_DOCUMENTS])
    more = f" and {len(named) - SHOWN_DOCUMENTS} more" if len(named) > SHOWN_DOCUMENTS else ""
    return PilekitError(
        f"step {step}: {what}, in rows with {shown}{more} (all of them: {visible(str(file))}); "
        "lower optimizer.lr or lengthen schedule.warmup; the same command goes on from the last checkpoint"
    )
