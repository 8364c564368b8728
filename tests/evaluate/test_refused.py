"""What is wrong with arguments, model or tokenizer is one line, told before the weights are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate.bits_per_byte import bits_per_byte
from tests.tiny import tiny_model_dir
from tests.tokenize.making import byte_level_bpe


@pytest.mark.parametrize("name", ["limit", "max_length", "batch_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "8", True])
def test_impossible_counts(name: str, value: Any, model_dir: Path, corpus: Path) -> None:
    with pytest.raises(PilekitError, match=f"{name} is a whole number from 1 on, not "):
        bits_per_byte(model_dir, corpus, **{name: value})


def break_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def grow_tokenizer(folder: Path) -> None:
    byte_level_bpe(600).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_model, "no weights"),
        (break_tokenizer, "no tokenizer.json"),
        (grow_tokenizer, "vocabulary larger than the embeddings"),
    ],
)
def test_what_a_model_dir_lacks(damage: Callable[[Path], None], words: str, tmp_path: Path, corpus: Path) -> None:
    model_dir = tiny_model_dir(tmp_path)
    damage(model_dir)
    with pytest.raises(PilekitError, match=words):
        bits_per_byte(model_dir, corpus)


def test_what_is_wrong_is_told_before_the_weights_are_read(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_weights(*arguments: Any, **options: Any) -> None:
        pytest.fail("the weights were read")

    monkeypatch.setattr(module, "load_causal_lm", read_weights)
    model_dir = tiny_model_dir(tmp_path / "model")
    arguments: list[tuple[dict[str, Any], str]] = [
        ({"prefix": "first"}, "prefix is auto, bos"),
        ({"prefix": 320}, "only the ids 0 to 319"),
        ({"max_length": 33}, "the model has 32 positions"),
        ({"context_len": 33}, "context_len is 33, but a window has only 32 tokens"),
        ({"max_length": 8, "context_len": 9}, "context_len is 9, but a window has only 8 tokens"),
        ({"context_len": 0}, "context_len is a whole number from 1 on"),
        ({"mlm_sample": 0}, "mlm_sample is a whole number from 1 on"),
        ({"mlm_sample": 5}, "mlm_sample is for masked models, and this gpt_neox model is a causal one"),
        ({"dtype": "float32"}, "dtype is auto, fp32, bf16 or fp16, not 'float32'"),
        ({"device": "gpu"}, "device is auto, cpu, cuda or cuda:N, not 'gpu'"),
        ({"train": tmp_path / "nowhere"}, "no such file or folder"),
        ({"out": model_dir / "config.json"}, "cannot be made: Not a directory"),
    ]
    for options, words in arguments:
        with pytest.raises(PilekitError, match=words):
            bits_per_byte(model_dir, corpus, **options)
    grow_tokenizer(model_dir)
    with pytest.raises(PilekitError, match="vocabulary larger than the embeddings"):
        bits_per_byte(model_dir, corpus)
    break_tokenizer(model_dir)
    with pytest.raises(PilekitError, match=r"no tokenizer\.json"):
        bits_per_byte(model_dir, corpus)
    (model_dir / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(PilekitError, match="not a whole safetensors file"):
        bits_per_byte(model_dir, corpus)


@pytest.mark.parametrize("model_dir", [3, None, b"model", ["model"]])
def test_what_is_no_path_of_a_model(model_dir: Any, corpus: Path) -> None:
    with pytest.raises(PilekitError, match="model_dir is the path of a model's folder, not "):
        bits_per_byte(model_dir, corpus)
