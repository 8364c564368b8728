"""A student learns more from its teacher and the text than the same student from the text alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.compare import compare
from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer
from tests.tiny.models import tiny_neox_config, tiny_tokenizer


def write_text(path: Path, documents: int, draw: random.Random, followers: dict[str, list[str]]) -> None:
    """Chains of words, each followed by one of six, half of the time by the first."""
    with path.open("w") as file:
        for _ in range(documents):
            chain = [draw.choice(list(followers))]
            for _ in range(draw.randint(40, 200)):
                chain += draw.choices(followers[chain[-1]], weights=[32, 16, 8, 4, 2, 1])
            file.write(json.dumps({"text": " ".join(chain), "meta": {"pile_set_name": "ArXiv"}}) + "\n")


@pytest.mark.slow
def test_a_taught_student_has_fewer_bits_per_byte(tmp_path: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 7))) for _ in range(400)]
    followers = {word: draw.choices(words, k=6) for word in words}
    write_text(tmp_path / "train.jsonl", 4000, draw, followers)
    write_text(tmp_path / "val.jsonl", 80, draw, followers)
    tiny_tokenizer(tmp_path / "tokenizer")
    shape: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 128, "max_position_embeddings": 64}
    for name, blocks in (("large", 12), ("small", 6)):
        tiny_neox_config(**shape, num_hidden_layers=blocks).save_pretrained(tmp_path / name)

    def trained(name: str, model: str, steps: int, **teacher: Any) -> Path:
        config = {
            "data": {"path": tmp_path / "train.jsonl", "tokenizer": tmp_path / "tokenizer", "seq_len": 64},
            "model": {"config": tmp_path / model},
            "teacher": teacher,
            "train": {"steps": steps, "global_batch_size": 16, "micro_batch_size": 16},
            "optimizer": {"lr": 3e-3},
            "schedule": {"warmup": 20},
        }
        found = Trainer(load_config(config), tmp_path / name).fit().model
        assert found is not None
        return found

    teacher = trained("teacher", "large", 250)
    models = trained("alone", "small", 120), trained("taught", "small", 120, path=teacher)
    alone, taught = (bits_per_byte(model, tmp_path / "val.jsonl", out=f"{model}-bpb") for model in models)
    assert compare([alone, taught]).against[0].overall.interval[1] < 0
