"""Helpers for tests of whole runs: a folder with everything a run needs, its metrics, and stopping it."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pilekit.train.config.file import load_config, to_toml
from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.trainer import Trainer
from tests.tiny.models import tiny_corpus, tiny_neox_config, tiny_tokenizer

TIMES = ("tokens_per_second", "data_wait", "step_seconds", "memory_bytes")
"""The figures that differ between any two runs."""


def small_config(changes: Mapping[str, Any] | Sequence[str] = ()) -> TrainConfig:
    """A config whose files need not exist, with these changes."""
    given = {"data": {"tokenizer": "tokenizer.json"}, "model": {"preset": "pythia-14m"}, "train": {"steps": 10}}
    return load_config(given, changes)


def tiny_run(folder: Path, *changes: str, documents: int = 30, **shape: Any) -> Path:
    """`folder` with a corpus, a tokenizer, the shape of a model, and `tiny.toml` with their names and these changes."""
    tiny_corpus(folder / "data", documents=documents)
    tiny_tokenizer(folder / "tokenizer")
    shape = {"initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 0, **shape}
    tiny_neox_config(**shape).save_pretrained(folder / "shape")
    given = {
        "data": {"path": folder / "data", "tokenizer": folder / "tokenizer", "seq_len": 32, "window": 64},
        "model": {"config": folder / "shape"},
        "train": {"steps": 4, "global_batch_size": 4, "micro_batch_size": 2},
    }
    (folder / "tiny.toml").write_text(to_toml(load_config(given, changes)))
    return folder


def trainer(made: Path, out: Path, *changes: str, **more: Any) -> Trainer:
    """A trainer of `tiny.toml` in `made` with these changes."""
    return Trainer(load_config(made / "tiny.toml", changes), out, **more)


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


@contextmanager
def warnings_of(name: str = "pilekit") -> Iterator[list[logging.LogRecord]]:
    """The warnings of this logger inside, where `caplog` cannot be: in a rank, in each example of a property."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = found.append  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger(name).removeHandler(handler)
