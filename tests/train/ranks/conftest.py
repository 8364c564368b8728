"""Corpora and configs for whole runs on several ranks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from tests.tiny.models import tiny_corpus, tiny_model, tiny_neox_config, tiny_tokenizer
from tests.train.ranks.fitting import RARE, omega

CONFIG = """
[data]
path = "{folder}/corpus"
tokenizer = "{folder}/tokenizer"
seq_len = 24
window = 8
[model]
config = "{folder}/plain/config.json"
[train]
steps = 6
global_batch_size = 8
micro_batch_size = 2
clip_norm = 0.5
[optimizer]
lr = 0.01
eps = 1e-3
[schedule]
warmup = 2
[checkpoint]
every = 2
"""
"""`eps` is far above the rounding errors of a gradient that should be 0; Adam would otherwise take a full step."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a tokenizer, configs of a model without and with dropout, and run.toml."""
    folder = tmp_path_factory.mktemp("made")
    tiny_corpus(folder / "corpus", shards=2, documents=60)
    tiny_tokenizer(folder / "tokenizer")
    for name, dropout in (("plain", 0.0), ("dropout", 0.1)):
        tiny_neox_config(
            initializer_range=0.2,
            hidden_dropout=dropout,
            attention_dropout=dropout,
        ).save_pretrained(folder / name)
    (folder / "run.toml").write_text(CONFIG.format(folder=folder))
    return folder


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
