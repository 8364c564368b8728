"""A run on a GPU: bf16, bits per byte while training, a resumed run, and the figures that only a GPU has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pilekit import bits_per_byte
from pilekit.train.log.metrics import StepBitsPerByte, read_metrics
from tests.tiny.models import tiny_corpus
from tests.train.runs import interrupt_at, tiny_run, trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")


def test_a_run_in_bf16_learns_scores_and_resumes(tmp_path: Path) -> None:
    held_out = tiny_corpus(tmp_path / "held-out", seed=7)
    scored = ("train.eval_every=10", f"train.eval_path={held_out}")
    made = tiny_run(tmp_path, "train.steps=20", "precision.dtype=bf16", "optimizer.lr=0.01", *scored)
    first = trainer(made, tmp_path / "run")
    assert first.ranks.device.type == "cuda"
    first.fit(interrupt_at(10))
    trainer(made, tmp_path / "run").fit()
    trainer(made, tmp_path / "whole").fit()
    steps, whole = (list(read_metrics(tmp_path / run / "metrics.jsonl")) for run in ("run", "whole"))
    assert [step.step for step in steps] == list(range(1, 21))
    losses = [step.loss or math.nan for step in steps]
    assert losses == pytest.approx([step.loss or math.nan for step in whole], rel=1e-2)
    assert sum(losses[-5:]) < sum(losses[:5])
    assert all(step.memory_bytes > 0 for step in steps)
    found = steps[-1].bpb
    assert isinstance(found, StepBitsPerByte)
    exported = bits_per_byte(tmp_path / "run" / "model", held_out, dtype="fp32").overall.bpb
    assert found.overall == pytest.approx(exported, rel=2e-2)
