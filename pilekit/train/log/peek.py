"""The command that shows the documents of a step. Warnings about a step end with it.

The content of a step depends only on shards, tokenizer, settings and the lane grid. The command names these, so the
ranks and the machine of the run do not matter. With a checkpoint from before the step, it skips the data before the
checkpoint.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from pilekit.errors import visible
from pilekit.stream.pile_stream import PileStream
from pilekit.train.config.sections import DataConfig, TrainConfig


def inspect_step_command(config: TrainConfig, stream: PileStream, step: int, checkpoint: Path | None = None) -> str:
    """`pilekit stream ... --peek` for a step (from 1, as in metrics.jsonl), to be run in the same folder.

    checkpoint   a `step-N` folder of the run; used if N is below `step`. Otherwise the command starts from the
                 beginning, which for a late step takes about as long as reading up to it
    """
    data, default = config.data, DataConfig()
    paths = [data.path] if isinstance(data.path, str) else data.path or []
    words = ["pilekit", "stream", *(f"./{path}" if path.startswith("-") else path for path in paths)]
    words += ["--tokenizer", data.tokenizer or config.source.path or ""]
    words += ["--seq-len", str(data.seq_len), "--global-batch-size", str(stream.global_batch_size)]
    for field in ("manifest", "text_field", "label"):
        if (value := getattr(data, field)) is not None:
            words += [f"--{field.replace('_', '-')}", value]
    if stream.subsets is not None:
        words += ["--subsets", ",".join(stream.subsets)]
    if stream.repeats:  # those of data.weights too
        words += ["--repeats", _numbers(stream.repeats)]
    if data.schedule is not None:
        entries = (f"{entry.step}:{_numbers(entry.weights)}" for entry in data.schedule)
        words += ["--weights", ";".join(entries), "--ramp", str(data.ramp)]
    if data.dedup is not None:
        words += ["--dedup", data.dedup]
    for field in ("copies", "copies_max", "packing", "window", "seed", "on_error"):
        if (value := getattr(data, field)) != getattr(default, field):
            words += [f"--{field.replace('_', '-')}", str(value)]
    other_rows = config.train.objective == "mlm"  # the command makes unmasked rows, which refuse this state
    if checkpoint is None or other_rows or int(checkpoint.name.removeprefix("step-")) >= step:
        words += ["--lanes", f"{stream.grid.rows},{stream.grid.columns}"]
    else:
        words += ["--state", str(checkpoint)]
    return visible(shlex.join([*words, "--peek", str(step - 1)]))


def _numbers(by_name: Mapping[str, float]) -> str:
    return ",".join(f"{name}={number!r}" for name, number in by_name.items())
