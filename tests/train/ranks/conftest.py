"""Corpora and configs for whole runs on several ranks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from tests.process_groups import ProcessGroups
from tests.tiny.models import tiny_model, tiny_neox_config
from tests.train.ranks.fitting import RARE, STEPS, Job, omega
from tests.train.runs import tiny_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and in `dropout` the shape of its model with dropout."""
    folder = tmp_path_factory.mktemp("made")
    # eps is far above the rounding errors of a gradient that should be 0; Adam would otherwise take a full step.
    rates = ("optimizer.lr=0.01", "optimizer.eps=1e-3", "schedule.warmup=2", "train.clip_norm=0.5")
    rows = ("data.seq_len=24", "data.window=8", "train.global_batch_size=8")
    tiny_run(folder, *rates, *rows, f"train.steps={STEPS}", "checkpoint.every=2", documents=60)
    dropout = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    tiny_neox_config(initializer_range=0.2, **dropout).save_pretrained(folder / "dropout")
    return folder


@pytest.fixture
def job(made: Path, tmp_path: Path, process_group: ProcessGroups) -> Job:
    return Job(made, tmp_path, process_group)


@pytest.fixture(scope="module")
def rare(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Changes for a corpus where one document has a token whose embedding, finite but huge, leaves its row no loss."""
    folder = tmp_path_factory.mktemp("rare")
    draw = random.Random(1)
    texts = [" ".join(draw.choices(["the", "quick", "brown fox", "12345"], k=draw.randint(1, 12))) for _ in range(200)]
    texts[RARE] += " Ω"
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[omega(made)] = 1e30
    model.save_pretrained(folder / "model")
    return (f"data.path={folder}/corpus.jsonl", f"model.path={folder}/model", "train.micro_batch_size=1", "data.seed=2")
