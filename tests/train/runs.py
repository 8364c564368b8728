"""Helpers for tests of whole runs: a folder with everything a run needs, its metrics, and stopping it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilekit.train.log.metrics import StepMetrics
from tests.tiny.models import tiny_corpus, tiny_model, tiny_tokenizer

TIMES = ("tokens_per_second", "data_wait", "step_seconds", "memory_bytes")
"""The figures that differ between any two runs."""


def tiny_run(folder: Path, *, steps: int, micro_batch_size: int, more: str = "") -> Path:
    """`folder` with a corpus, a tokenizer, the shape of a model, and `tiny.toml` that names them and ends in `more`."""
    tiny_corpus(folder / "data")
    tiny_tokenizer(folder / "tokenizer")
    tiny_model().config.save_pretrained(folder / "shape")
    (folder / "tiny.toml").write_text(f"""\
[data]
path = "{folder}/data"
tokenizer = "{folder}/tokenizer"
seq_len = 32
window = 64
[model]
config = "{folder}/shape"
[train]
steps = {steps}
global_batch_size = 4
micro_batch_size = {micro_batch_size}
{more}""")
    return folder


def lines(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the figures that depend on the clock and the machine."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def interrupt_at(step: int) -> Callable[[StepMetrics], None]:
    """For `Trainer.fit`: interrupts it as Ctrl-C does, after that step."""

    def on_step(metrics: StepMetrics) -> None:
        if metrics.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return on_step
