"""A run on a GPU: bf16, bits per byte while training, a resumed run, and the figures that only a GPU has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pilekit import bits_per_byte
from pilekit.train.config.file import load_config
from pilekit.train.log.metrics import StepBitsPerByte, read_metrics
from pilekit.train.trainer import Trainer
from tests.tiny.models import tiny_corpus
from tests.train.runs import interrupt_at, tiny_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")


def test_a_run_in_bf16_learns_scores_and_resumes(tmp_path: Path) -> None:
    made, held_out = tiny_run(tmp_path, steps=20, micro_batch_size=2), tmp_path / "held-out"
    tiny_corpus(held_out, seed=7)
    changes = ("precision.dtype=bf16", "train.eval_every=10", f"train.eval_path={held_out}", "optimizer.lr=0.01")
    config = load_config(made / "tiny.toml", changes)
    trainer = Trainer(config, tmp_path / "run")
    assert trainer.ranks.device.type == "cuda"
    trainer.fit(interrupt_at(10))
    Trainer(config, tmp_path / "run").fit()
    Trainer(config, tmp_path / "whole").fit()
    steps, whole = (list(read_metrics(tmp_path / run / "metrics.jsonl")) for run in ("run", "whole"))
    assert [step.step for step in steps] == list(range(1, 21))
    losses = [step.loss or math.nan for step in steps]
    assert losses == pytest.approx([step.loss or math.nan for step in whole], rel=1e-2)
    assert sum(losses[-5:]) < sum(losses[:5])
    assert all(step.memory_bytes > 0 for step in steps)
    scored = steps[-1].bpb
    assert isinstance(scored, StepBitsPerByte)
    exported = bits_per_byte(tmp_path / "run" / "model", held_out, dtype="fp32").overall.bpb
    assert scored.overall == pytest.approx(exported, rel=2e-2)
