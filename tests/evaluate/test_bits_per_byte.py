"""The figures are those of the reference: one window at a time, in float64."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pilekit.corpus import Corpus, load_manifest
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate.bits_per_byte import bits_per_byte, score_corpus
from pilekit.evaluate.results.records import Records
from pilekit.evaluate.results.scores import Score
from pilekit.evaluate.scoring_run import READ_AHEAD, ScoringProgress
from pilekit.evaluate.settings import ScoreSettings
from pilekit.models.causal import as_causal_lm, load_causal_lm
from pilekit.shards.index.build import index_corpus
from pilekit.tokenize import load_tokenizer
from tests.evaluate.documents import documents_of, write
from tests.evaluate.reference import reference_bpb, reference_nll
from tests.refusing import refused
from tests.tiny.models import Family, tiny_corpus, tiny_model, tiny_model_dir
from tests.tokenize.making import byte_level_bpe


@pytest.mark.parametrize(
    ("family", "context_len"),
    [("gpt_neox", 12), *(pytest.param(family, 1, marks=pytest.mark.slow) for family in ("gpt2", "llama"))],
)
def test_figures_equal_the_reference_whatever_the_batch(family: Family, context_len: int, tmp_path: Path) -> None:
    model_dir, corpus = tiny_model_dir(tmp_path / "model", family), tiny_corpus(tmp_path / "corpus", documents=9)
    texts, tokenizer = documents_of(corpus), load_tokenizer(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir).double().eval()
    expected = {}
    for subset, own in texts.items():
        nll = math.fsum(reference_nll(model, tokenizer.encode(text), 0, 32, context_len) for text in own)
        expected[subset] = nll, reference_bpb(nll, own)
    everything = [text for of in texts.values() for text in of]
    nll = math.fsum(nll for nll, _ in expected.values())
    overall = nll, reference_bpb(nll, everything)
    for (dtype, tolerance), size in product(((torch.float32, 1e-6), (torch.float64, 1e-12)), (1, 100_000)):
        lm = load_causal_lm(model_dir, dtype=dtype)
        result = score_corpus(lm, tokenizer, Corpus(corpus), ScoreSettings(context_len=context_len, batch_tokens=size))
        assert set(result.subsets) == set(texts)
        for score, figures, of in (
            (result.overall, overall, everything),
            *((result.subsets[name], expected[name], texts[name]) for name in texts),
        ):
            assert (score.nll, score.bpb) == pytest.approx(figures, rel=tolerance)
            assert (score.documents, score.bytes) == (len(of), sum(len(text.encode()) for text in of))
        assert result.overall.tokens == sum(score.tokens for score in result.subsets.values())


def test_a_folder_and_memory_give_the_same_figures_and_protocol(model_dir: Path, corpus: Path) -> None:
    result = bits_per_byte(model_dir, corpus)
    lm, tokenizer, protocol = load_causal_lm(model_dir), load_tokenizer(model_dir), result.protocol
    nowhere = {**protocol["model"], "path": None, "weights": None, "config": None}
    for in_memory in (
        score_corpus(lm, tokenizer, Corpus(corpus)),
        bits_per_byte(lm.model, corpus, tokenizer=model_dir),
    ):
        assert (result.overall, result.subsets) == (in_memory.overall, in_memory.subsets)
        assert in_memory.protocol == {**protocol, "model": nowhere}
    given = lm.model.to(torch.bfloat16)
    low = bits_per_byte(given, corpus, tokenizer=tokenizer)
    assert (low.protocol["dtype"], given.dtype) == ("bfloat16", torch.bfloat16)
    assert low.overall.bpb == pytest.approx(result.overall.bpb, rel=0.02)
    for model, options, message in (
        (given, {"tokenizer": None}, "^a model in memory needs its tokenizer; give it as tokenizer="),
        (given, {"dtype": "fp32"}, "^adapter, out, dtype and device are for a model in a folder"),
        (given, {"out": model_dir / "out"}, "^adapter, out, dtype and device are for a model"),
        (torch.nn.Linear(2, 2), {}, "^a Linear is not a model of transformers, nor the path"),
    ):
        refused(message, bits_per_byte, model, corpus, **{"tokenizer": tokenizer, **options})
    assert json.loads(json.dumps(protocol)) == protocol
    assert protocol["model"]["parameters"] == sum(parameter.numel() for parameter in lm.model.parameters())
    assert protocol["tokenizer"]["fingerprint"] == f"sha256:{tokenizer.fingerprint}"
    assert protocol["prefix"] == {"given": "auto", "id": 0, "token": "<|endoftext|>"}
    assert protocol["data"] == [
        {"name": name, "size": (corpus / f"{name}.zst").stat().st_size} for name in ("00.jsonl", "01.jsonl")
    ]
    expected = {"max_length": 32, "context_len": 1, "dtype": "float32", "manifest": "pile", "subsets": None}
    expected |= {"limit": None, "skipped_lines": 0, "labels": list(result.subsets)}
    assert {name: protocol[name] for name in expected} == expected


def test_raw_bytes_and_special_text(tmp_path: Path, model_dir: Path) -> None:
    """NFC merges two characters here: 3 bytes of text become 2 encoded bytes. Special tokens in a text are text."""
    text = "cafe\u0301 \u212b A\u030a \u1112\u1161\u11ab"
    nfc_model = tiny_model_dir(tmp_path / "model", vocab_size=800)
    byte_level_bpe(700, nfc=True).save(str(nfc_model / "tokenizer.json"))
    result = bits_per_byte(nfc_model, write(tmp_path / "a.jsonl", [("ArXiv", text)]))
    tokenizer = load_tokenizer(nfc_model)
    ids = tokenizer.encode_batch([text])[0].tolist()
    assert len(tokenizer.decode(ids).encode()) < len(text.encode())
    assert (result.overall.bytes, result.overall.tokens) == (len(text.encode()), len(ids))
    special = write(tmp_path / "special.jsonl", [("ArXiv", "<|endoftext|>" * 3), ("Github", "")])
    result = bits_per_byte(model_dir, special)
    assert result.subsets["ArXiv"].tokens > 3
    assert result.subsets["Github"] == Score(documents=1)
    assert (result.subsets["Github"].bpb, result.overall.nll) == (None, result.subsets["ArXiv"].nll)


def test_a_model_in_training_is_left_as_it_was(model_dir: Path, corpus: Path) -> None:
    """Dropout is off while scoring, the mode and the random numbers are unchanged, and training continues."""
    tokenizer = load_tokenizer(model_dir)
    torch.manual_seed(0)
    model = tiny_model("gpt2")  # with dropout
    expected = score_corpus(as_causal_lm(model.eval()), tokenizer, Corpus(corpus)).overall
    lm = as_causal_lm(model.train())
    before = torch.get_rng_state()
    assert score_corpus(lm, tokenizer, Corpus(corpus)).overall == expected
    assert bits_per_byte(model, corpus, tokenizer=tokenizer).overall == expected
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    model(input_ids=torch.zeros(1, 8, dtype=torch.long), labels=torch.zeros(1, 8, dtype=torch.long)).loss.backward()
    refused("prefix", score_corpus, lm, tokenizer, Corpus(corpus), ScoreSettings(prefix="x"))
    assert model.training


def test_progress_follows_the_scoring(model_dir: Path, tmp_path: Path) -> None:
    """A small shard is read at once: its bytes are reported as its tokens are scored, and in the end all of them."""
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "the quick brown fox " * 20)] * 60)
    told: list[tuple[int, int | None, float | None]] = []
    result = bits_per_byte(model_dir, shard, report=lambda *reported: told.append(reported))
    stored = shard.stat().st_size
    assert told[0] == (0, stored, None)
    assert told[-1] == (stored, stored, pytest.approx(result.overall.bpb, rel=1e-12))
    assert len({done for done, _, _ in told}) > 3
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    told.clear()
    nothing = Records.of([], ["a.jsonl"], load_manifest())
    progress = ScoringProgress(lambda *reported: told.append(reported), None, 1 << 30, nothing)
    for _ in range(100):
        progress.count_read(1 << 20)
        progress.count_scored(0)
    assert told[-1] == ((100 << 20) - READ_AHEAD, 1 << 30, None)  # never far behind the reading


def test_with_limits_or_indexes_the_bytes_of_all_texts_are_the_total_of_progress(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when an earlier run has scored some of them; nobody counts for a caller that listens to nothing."""
    texts = [("ArXiv", f"the quick brown fox {n} " * (1 + 7 * n % 40)) for n in range(60)]
    write(tmp_path / "corpus" / "a.jsonl", texts)
    corpus = Corpus(tmp_path / "corpus")

    def check(**options: Any) -> list[int]:
        told: list[tuple[int, int | None, float | None]] = []
        result = bits_per_byte(model_dir, corpus, report=lambda *reported: told.append(reported), **options)
        assert result.overall.bytes < sum(len(text) for _, text in texts) or not options
        assert {total for _, total, _ in told} == {result.overall.bytes}
        assert told[-1] == (result.overall.bytes, result.overall.bytes, pytest.approx(result.overall.bpb, rel=1e-12))
        done = [done for done, _, _ in told]
        assert done == sorted(done)
        return done

    assert len(set(check(limit=50))) > 5
    assert len(set(check(limit_bytes=20_000))) > 5

    def stopped(done: int, _total: int | None, bits: float | None) -> None:
        if bits is not None and done > 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bits_per_byte(model_dir, corpus, limit=50, out=tmp_path / "out", report=stopped)
    assert check(limit=50, out=tmp_path / "out")[0] > 0
    assert check(limit=50, out=tmp_path / "out")[0] == bits_per_byte(model_dir, corpus, limit=50).overall.bytes
    index_corpus(corpus)
    check()
    monkeypatch.setattr("pilekit.evaluate.scoring_run.text_bytes_selected", lambda _plan: pytest.fail("counted"))
    bits_per_byte(model_dir, corpus, limit=50)


@pytest.mark.parametrize("changed", ["data/01.jsonl.zst", "model/model.safetensors"])
def test_a_shard_or_model_that_changes_before_it_is_read_is_named_and_nothing_of_it_recorded(
    tmp_path: Path, model_dir: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    tiny_corpus(tmp_path / "other/data", seed=9)
    tiny_model_dir(tmp_path / "other/model", seed=9)
    model, data = shutil.copytree(model_dir, tmp_path / "model"), shutil.copytree(corpus, tmp_path / "data")
    whole, out = shutil.copy(tmp_path / changed, tmp_path / "whole"), tmp_path / "out"

    def replaced(*arguments: Any, **named: Any) -> Any:
        (tmp_path / "other" / changed).rename(tmp_path / changed)
        return load_causal_lm(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, "load_causal_lm", replaced)
        message = f"{tmp_path / changed}: was changed while it was read; run again"
        refused(message, bits_per_byte, model, data, out=out)
    assert not (out / "result.json").exists()
    shutil.copy(whole, tmp_path / changed)
    result, expected = bits_per_byte(model, data, out=out), bits_per_byte(model_dir, corpus)
    assert (result.subsets, result.overall) == (expected.subsets, expected.overall)
