"""What a figure depends on, prefix, window, precision and weights, is chosen as asked for and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.tokenize import load_tokenizer
from tests.evaluate.documents import documents_of
from tests.tiny import tiny_model_dir


def test_other_weights_have_another_fingerprint(tmp_path: Path, corpus: Path, model_dir: Path) -> None:
    other = tiny_model_dir(tmp_path / "other", seed=1)
    same = tiny_model_dir(tmp_path / "same")
    weights = [
        bits_per_byte(folder, corpus, limit=1).protocol["model"]["weights"] for folder in (model_dir, other, same)
    ]
    assert weights[0] == weights[2] != weights[1]


def test_prefixes(tmp_path: Path, corpus: Path) -> None:
    model_dir = tiny_model_dir(tmp_path)

    def of(prefix: str | int) -> tuple[BitsPerByte, dict[str, Any]]:
        result = bits_per_byte(model_dir, corpus, prefix=prefix)
        return result, result.protocol["prefix"]

    with pytest.raises(PilekitError, match=r"no BOS token for the prefix bos; give a token's id as prefix, or none"):
        of("bos")
    auto, eos, none, by_text, by_id = (of(prefix) for prefix in ("auto", "eos", "none", "5", 5))
    assert auto[0].overall == eos[0].overall
    assert by_text[0].overall == by_id[0].overall != auto[0].overall
    assert by_id[1] == {"given": "5", "id": 5, "token": load_tokenizer(model_dir).decode([5])}
    assert none[1] == {"given": "none", "id": None, "token": None}
    texts = [text for of in documents_of(corpus).values() for text in of]
    assert auto[0].overall.tokens - none[0].overall.tokens == sum(map(bool, texts))
    assert auto[0].overall.bytes == none[0].overall.bytes
    (model_dir / "tokenizer_config.json").write_text('{"bos_token": "<|padding|>", "eos_token": "<|endoftext|>"}')
    assert [of(prefix)[1]["id"] for prefix in ("auto", "bos", "eos")] == [1, 1, 0]
    assert of("auto")[0].overall == of(1)[0].overall


@pytest.mark.parametrize("prefix", ["BOS", "", "-1", "1.5", "٣", "9" * 5000, -1, 1.5, None, "\x1b[31m"])
def test_what_is_no_prefix(prefix: Any, model_dir: Path, corpus: Path) -> None:
    with pytest.raises(PilekitError, match=r"prefix is auto, bos, eos, none or a token's id, not '.{0,45}'$") as error:
        bits_per_byte(model_dir, corpus, prefix=prefix)
    assert "\x1b" not in str(error.value)


def test_a_prefix_that_the_model_does_not_have(model_dir: Path, corpus: Path) -> None:
    with pytest.raises(PilekitError, match=r"prefix is the token id 320, but the model has only the ids 0 to 319"):
        bits_per_byte(model_dir, corpus, prefix=320)


def test_a_tokenizer_without_bos_and_eos(tmp_path: Path, corpus: Path) -> None:
    model_dir = tiny_model_dir(tmp_path)
    file = model_dir / "tokenizer.json"
    file.write_text(file.read_text().replace("<|endoftext|>", "<|nothing|>"))
    with pytest.raises(PilekitError, match="neither a BOS nor an EOS token for the prefix auto"):
        bits_per_byte(model_dir, corpus)
    assert bits_per_byte(model_dir, corpus, prefix="none").overall.tokens > 0


def test_a_shorter_window(model_dir: Path, corpus: Path) -> None:
    assert bits_per_byte(model_dir, corpus, max_length=8).protocol["max_length"] == 8
    with pytest.raises(PilekitError, match="max_length is 33, but the model has 32 positions; give at most that"):
        bits_per_byte(model_dir, corpus, max_length=33)


def test_a_smaller_precision_is_asked_for_and_told(model_dir: Path, corpus: Path) -> None:
    whole, half = (bits_per_byte(model_dir, corpus, dtype=dtype) for dtype in ("auto", "bf16"))
    assert (whole.protocol["dtype"], half.protocol["dtype"]) == ("float32", "bfloat16")
    assert half.overall.nll != whole.overall.nll
    assert half.overall.nll == pytest.approx(whole.overall.nll, rel=1e-2)


def test_overlapping_windows_are_another_protocol(model_dir: Path, corpus: Path) -> None:
    """Each token is predicted from as many inputs or more, and the same tokens are counted."""
    disjoint, overlapping = (bits_per_byte(model_dir, corpus, context_len=of) for of in (1, 16))
    assert overlapping.protocol["context_len"] == 16
    assert "overlap" in overlapping.protocol["windows"]
    assert overlapping.overall.tokens == disjoint.overall.tokens
    assert overlapping.overall.nll != disjoint.overall.nll
