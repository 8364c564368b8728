"""Options are checked before the weights are read, and reach the figures and the protocol."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.tokenize import load_tokenizer
from tests.evaluate.documents import documents_of
from tests.refusing import refused
from tests.tiny.models import tiny_model_dir
from tests.tokenize.making import byte_level_bpe


def test_errors_are_found_before_the_weights_are_read(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "load_causal_lm", lambda *_, **__: pytest.fail("the weights were read"))
    model_dir = tiny_model_dir(tmp_path / "model")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prefix": 320}, "only the ids 0 to 319"),
        ({"prefix": "bos"}, "no token for the prefix bos; give a token's id as prefix, or none"),
        ({"max_length": 33}, "max_length is 33, but the model has 32 positions; give at most that"),
        ({"max_length": 8, "context_len": 9}, "context_len is 9, but a window has only 8 tokens"),
        ({"mlm_sample": 5}, "mlm_sample is for masked models, and this gpt_neox model is a causal one"),
        ({"device": "gpu"}, "device is auto, cpu, cuda or cuda:N, not 'gpu'"),
        ({"train": tmp_path / "nowhere"}, "no such file or folder"),
        ({"out": model_dir / "config.json"}, "config.json: is a file, where a folder belongs"),
    ]
    wrong.append(({"limit_bytes": 0}, "limit_bytes = 0: must be a whole number from 1 to 2^53"))
    prefixes = ("BOS", "", "1.5", "٣", "9" * 5000, -1, None, "\x1b[31m")
    wrong += [({"prefix": prefix}, "prefix is auto, bos, eos, none or a token's id, not '") for prefix in prefixes]
    for options, words in wrong:
        refused(re.escape(words), bits_per_byte, model_dir, corpus, **options)
    byte_level_bpe(600).save(str(model_dir / "tokenizer.json"))
    refused("vocabulary larger than the embeddings", bits_per_byte, model_dir, corpus)
    (model_dir / "tokenizer.json").unlink()
    refused("no tokenizer.json", bits_per_byte, model_dir, corpus)
    (model_dir / "model.safetensors").write_bytes(b"nothing")
    refused("not a whole safetensors file", bits_per_byte, model_dir, corpus)
    (model_dir / "model.safetensors").unlink()
    refused("no weights", bits_per_byte, model_dir, corpus)


def test_prefixes(tmp_path: Path, corpus: Path) -> None:
    model_dir = tiny_model_dir(tmp_path)

    def of(prefix: str | int) -> tuple[BitsPerByte, dict[str, Any]]:
        result = bits_per_byte(model_dir, corpus, prefix=prefix, limit=2)
        return result, result.protocol["prefix"]

    auto, eos, none, by_text, by_id = (of(prefix) for prefix in ("auto", "eos", "none", "5", 5))
    assert auto[0].overall == eos[0].overall
    assert by_text[0].overall == by_id[0].overall != auto[0].overall
    assert by_id[1] == {"given": "5", "id": 5, "token": load_tokenizer(model_dir).decode([5])}
    assert none[1] == {"given": "none", "id": None, "token": None}
    texts = [text for of in documents_of(corpus).values() for text in of[:2]]
    assert auto[0].overall.tokens - none[0].overall.tokens == sum(map(bool, texts)) > 0
    assert auto[0].overall.bytes == none[0].overall.bytes
    (model_dir / "tokenizer_config.json").write_text('{"bos_token": "<|padding|>", "eos_token": "<|endoftext|>"}')
    assert [of(prefix)[1]["id"] for prefix in ("auto", "bos", "eos")] == [1, 1, 0]
    assert of("auto")[0].overall == of(1)[0].overall
    (model_dir / "tokenizer_config.json").unlink()
    file = model_dir / "tokenizer.json"
    file.write_text(file.read_text().replace("<|endoftext|>", "<|nothing|>"))
    refused("no token for the prefix auto", bits_per_byte, model_dir, corpus)
    assert of("none")[0].overall.tokens > 0


def test_options_reach_the_figures_and_the_protocol(model_dir: Path, corpus: Path) -> None:
    disjoint, overlapping, short, half = (
        bits_per_byte(model_dir, corpus, limit=4, **options)
        for options in ({}, {"context_len": 16}, {"max_length": 8}, {"dtype": "bf16"})
    )
    assert overlapping.protocol["context_len"] == 16
    assert short.protocol["max_length"] == 8
    assert (disjoint.protocol["dtype"], half.protocol["dtype"]) == ("float32", "bfloat16")
    assert half.overall.nll == pytest.approx(disjoint.overall.nll, rel=1e-2)
    results = (disjoint, overlapping, short, half)
    assert len({result.overall.nll for result in results}) == 4
    assert len({result.overall.tokens for result in results}) == 1
