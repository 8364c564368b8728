"""What the log of documents costs a rank, without the rest of a step: a call per step, and a file per checkpoint."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from pilekit import PileStream
from pilekit.train.log.document_log import DocumentLog, log_parts

ROUNDS = 5


def stream_of(config: dict[str, Any], rank: int = 0, world_size: int = 1) -> PileStream:
    """The stream of one rank of a benchmark's run."""
    return PileStream(
        config["data"]["path"],
        tokenizer=config["model"]["path"],
        seq_len=config["data"]["seq_len"],
        packing=config["data"]["packing"],
        global_batch_size=config["train"]["global_batch_size"],
        grad_accum=1,
        rank=rank,
        world_size=world_size,
    )


def document_log_cost(folder: Path, config: dict[str, Any], steps: int) -> dict[str, float]:
    """Medians of logging the first steps of a run on one rank, with a file at the end.

    step_us   microseconds of a step in the training loop
    row_us    microseconds of a row when the file is written, flushing included
    row_bytes bytes of a row in the file
    rows      rows in a step: pieces of documents
    """
    stream = stream_of(config)
    batches = [batch for _, batch in zip(range(steps), stream, strict=False)]
    rows = sum(len(batch.pieces.length) for batch in batches)
    adding, writing = [], []
    for number in range(ROUNDS):
        log = DocumentLog(folder / str(number), stream)
        begin = time.perf_counter()
        for step, batch in enumerate(batches, 1):
            log.add(step, batch)
        middle = time.perf_counter()
        log.write()
        adding.append(middle - begin)
        writing.append(time.perf_counter() - middle)
    [part] = log_parts(folder / "0")
    return {
        "step_us": 1e6 * statistics.median(adding) / steps,
        "row_us": 1e6 * statistics.median(writing) / rows,
        "row_bytes": part.path(folder / "0").stat().st_size / rows,
        "rows": rows / steps,
    }
