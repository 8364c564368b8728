from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from pilekit.corpus import Corpus, Manifest, load_manifest
from pilekit.errors import PilekitError
from pilekit.evaluate import bits_per_byte as module
from pilekit.evaluate import selection
from pilekit.evaluate.bits_per_byte import bits_per_byte, score_corpus
from pilekit.evaluate.causal_lm import as_causal_lm, load_causal_lm
from pilekit.evaluate.credit import Credit
from pilekit.evaluate.result import BitsPerByte, Score, write_result
from pilekit.evaluate.result_folder import read_result
from pilekit.shards import read_corpus
from pilekit.tokenize import load_tokenizer
from tests.evaluate.reference import reference_bpb, reference_nll
from tests.tiny import Family, tiny_corpus, tiny_model, tiny_model_dir
from tests.tokenize.making import byte_level_bpe

FAMILIES: list[Family] = ["gpt_neox", "gpt2", "llama"]


def write(path: Path, documents: list[tuple[str | None, str]]) -> Path:
    lines = [{"text": text, "meta": {} if label is None else {"pile_set_name": label}} for label, text in documents]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def documents_of(corpus: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for batch in read_corpus(Corpus(corpus)):
        for text, subset in zip(batch.texts, batch.subsets, strict=True):
            found.setdefault(subset, []).append(text)
    return found


def expected_scores(
    model_dir: Path, texts: dict[str, list[str]], context_len: int = 1
) -> dict[str, tuple[float, float]]:
    """(nll, bits per byte) of each subset, slowly."""
    model = AutoModelForCausalLM.from_pretrained(model_dir).double().eval()
    tokenizer = load_tokenizer(model_dir)
    found = {}
    for subset, of in texts.items():
        ids = [tokenizer.encode_batch([text])[0].tolist() for text in of]
        nll = math.fsum(reference_nll(model, one, 0, 32, context_len) for one in ids)
        found[subset] = nll, reference_bpb(nll, of)
    return found


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=12)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("family", "context_len"), [*((family, 1) for family in FAMILIES), ("llama", 12)])
def test_equal_to_the_reference_whatever_the_batch(
    family: Family, context_len: int, corpus: Path, tmp_path: Path
) -> None:
    model_dir = tiny_model_dir(tmp_path, family)
    texts = documents_of(corpus)
    expected = expected_scores(model_dir, texts, context_len)
    everything = [text for of in texts.values() for text in of]
    for dtype, tolerance, same in ((torch.float32, 1e-6, 1e-7), (torch.float64, 1e-12, 1e-12)):
        lm, tokenizer = load_causal_lm(model_dir, dtype=dtype), load_tokenizer(model_dir)
        results = [
            score_corpus(lm, tokenizer, Corpus(corpus), context_len=context_len, batch_tokens=size)
            for size in (1, 100, 100_000)
        ]
        for result in results:
            assert set(result.subsets) == set(texts)
            for name, score in result.subsets.items():
                assert score.nll == pytest.approx(expected[name][0], rel=tolerance)
                assert score.bpb == pytest.approx(expected[name][1], rel=tolerance)
                assert score.documents == len(texts[name])
                assert score.bytes == sum(len(text.encode()) for text in texts[name])
            nll = math.fsum(nll for nll, _ in expected.values())
            assert result.overall.nll == pytest.approx(nll, rel=tolerance)
            assert result.overall.bpb == pytest.approx(reference_bpb(nll, everything), rel=tolerance)
            assert result.overall.bpb == pytest.approx(results[0].overall.bpb, rel=same)
            for field in ("documents", "bytes", "tokens"):
                total = sum(getattr(score, field) for score in result.subsets.values())
                assert getattr(result.overall, field) == total


def test_from_a_folder_it_is_the_same_with_the_protocol(model_dir: Path, corpus: Path) -> None:
    result = bits_per_byte(model_dir, corpus)
    lm, tokenizer = load_causal_lm(model_dir), load_tokenizer(model_dir)
    in_memory = score_corpus(lm, tokenizer, Corpus(corpus))
    assert (result.overall, result.subsets) == (in_memory.overall, in_memory.subsets)
    protocol = result.protocol
    assert json.loads(json.dumps(protocol)) == protocol
    assert protocol["model"]["path"] == str(model_dir)
    assert protocol["model"]["model_type"] == "gpt_neox"
    assert protocol["model"]["parameters"] == sum(parameter.numel() for parameter in lm.model.parameters())
    assert protocol["tokenizer"]["fingerprint"] == f"sha256:{tokenizer.fingerprint}"
    assert protocol["max_length"] == 32
    assert protocol["context_len"] == 1
    assert protocol["prefix"] == {"given": "auto", "id": 0, "token": "<|endoftext|>"}
    assert protocol["dtype"] == "float32"
    assert protocol["data"] == [
        {"name": name, "size": (corpus / f"{name}.zst").stat().st_size} for name in ("00.jsonl", "01.jsonl")
    ]
    assert (protocol["manifest"], protocol["subsets"], protocol["limit"]) == ("pile", None, None)
    assert protocol["skipped_lines"] == 0
    nowhere = {**protocol["model"], "path": None, "weights": None, "config": None}
    labels = {batch_label for batch in read_corpus(Corpus(corpus)) for batch_label in batch.subsets}
    assert set(protocol["labels"]) == labels == set(result.subsets)
    assert in_memory.protocol | {"labels": protocol["labels"]} == {**protocol, "model": nowhere}
    assert "labels" not in in_memory.protocol


def test_other_weights_have_another_fingerprint(tmp_path: Path, corpus: Path, model_dir: Path) -> None:
    other = tiny_model_dir(tmp_path / "other", seed=1)
    same = tiny_model_dir(tmp_path / "same")
    weights = [
        bits_per_byte(folder, corpus, limit=1).protocol["model"]["weights"] for folder in (model_dir, other, same)
    ]
    assert weights[0] == weights[2] != weights[1]


def test_a_uniform_model(tmp_path: Path, corpus: Path) -> None:
    """Every token costs log2(V) bits, exactly, whatever the windows."""
    model_dir = tiny_model_dir(tmp_path)
    lm = load_causal_lm(model_dir, dtype=torch.float64)
    torch.nn.init.zeros_(lm.head.weight)
    for max_length in (1, 7, 32):
        result = score_corpus(lm, load_tokenizer(model_dir), Corpus(corpus), max_length=max_length)
        for score in (result.overall, *result.subsets.values()):
            assert score.bpb == pytest.approx(math.log2(320) * score.tokens / score.bytes, rel=1e-14)


def test_raw_bytes_are_counted_whatever_the_normaliser_does(tmp_path: Path) -> None:
    """NFC makes one character of two here: 3 bytes of the text become 2 of what is encoded."""
    text = "cafe\u0301 \u212b A\u030a \u1112\u1161\u11ab"
    model_dir = tiny_model_dir(tmp_path / "model", vocab_size=800)
    byte_level_bpe(700, nfc=True).save(str(model_dir / "tokenizer.json"))
    shard = write(tmp_path / "a.jsonl", [("ArXiv", text)])
    result = bits_per_byte(model_dir, shard)
    tokenizer = load_tokenizer(model_dir)
    ids = tokenizer.encode_batch([text])[0].tolist()
    assert len(tokenizer.decode(ids).encode()) < len(text.encode())
    assert result.overall.bytes == len(text.encode())
    assert result.overall.tokens == len(ids)


def test_special_text_in_a_document_is_text(tmp_path: Path, model_dir: Path) -> None:
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "<|endoftext|>" * 3)])
    assert bits_per_byte(model_dir, shard).overall.tokens > 3


def test_labels_in_the_manifests_order_then_as_they_come(tmp_path: Path, model_dir: Path) -> None:
    labels = ["zebra", "ArXiv", None, "apple", "Pile-CC", "Github", "ArXiv"]
    shard = write(tmp_path / "a.jsonl", [(label, f"text {label}") for label in labels])
    result = bits_per_byte(model_dir, shard)
    assert list(result.subsets) == ["Pile-CC", "ArXiv", "Github", "zebra", "(none)", "apple"]
    assert result.subsets["ArXiv"].documents == 2
    assert list(bits_per_byte(model_dir, shard, subsets=["(none)", "github"]).subsets) == ["Github", "(none)"]


def test_empty_documents_count_and_weigh_nothing(tmp_path: Path, model_dir: Path) -> None:
    shard = write(tmp_path / "a.jsonl", [("ArXiv", ""), ("Github", "x"), ("ArXiv", "")])
    result = bits_per_byte(model_dir, shard)
    assert result.subsets["ArXiv"] == Score(documents=2, bytes=0, tokens=0, nll=0.0)
    assert result.subsets["ArXiv"].bpb is None
    assert result.overall.documents == 3
    assert result.overall.nll == result.subsets["Github"].nll


def test_limit_takes_the_first_documents_of_each_subset(tmp_path: Path, model_dir: Path) -> None:
    texts = [("ArXiv", "a" * n) for n in range(1, 6)] + [("Github", "b"), (None, "cc"), (None, "ccc"), (None, "c")]
    shard = write(tmp_path / "a.jsonl", texts)
    result = bits_per_byte(model_dir, shard, limit=2)
    sizes = {name: (score.documents, score.bytes) for name, score in result.subsets.items()}
    assert sizes == {"ArXiv": (2, 3), "Github": (1, 1), "(none)": (2, 5)}
    assert result.protocol["limit"] == 2


def manifest_of(*names: str) -> Manifest:
    subsets = [f'[[subsets]]\nname = "{name}"' for name in names]
    return msgspec.toml.decode("\n".join(['name = "m"', *subsets]), type=Manifest)


@pytest.mark.parametrize(
    ("names", "subsets", "reads_on"),
    [
        (("A", "B"), None, False),
        (("A", "B", "C"), None, True),
        (("A", "B", "C"), ("A", "B"), False),
        ((), None, True),
        ((), ("B",), False),
    ],
)
def test_limit_stops_reading_once_nothing_more_can_be_wanted(
    names: tuple[str, ...], subsets: tuple[str, ...] | None, reads_on: bool, tmp_path: Path, model_dir: Path
) -> None:
    write(tmp_path / "corpus" / "00.jsonl", [("A", "a"), ("B", "b"), ("A", "aa")])
    (tmp_path / "corpus" / "01.jsonl").write_text("this is no document\n")
    corpus = Corpus(tmp_path / "corpus", manifest_of(*names))
    if reads_on:
        with pytest.raises(PilekitError, match=r"01\.jsonl, line 1"):
            bits_per_byte(model_dir, corpus, limit=1, subsets=subsets)
    else:
        assert set(bits_per_byte(model_dir, corpus, limit=1, subsets=subsets).subsets) == set(subsets or names)


def test_limit_reads_on_for_a_label_that_has_come_up(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path / "00.jsonl", [("A", "a"), ("A", "a"), ("X", "x")])
    write(tmp_path / "01.jsonl", [("X", "x"), ("X", "x")])
    result = bits_per_byte(model_dir, Corpus(tmp_path, manifest_of("A")), limit=2)
    assert {name: score.documents for name, score in result.subsets.items()} == {"A": 2, "X": 2}


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


@pytest.mark.parametrize("name", ["limit", "max_length", "batch_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "8", True])
def test_impossible_counts(name: str, value: Any, model_dir: Path, corpus: Path) -> None:
    with pytest.raises(PilekitError, match=f"{name} is a whole number from 1 on, not "):
        bits_per_byte(model_dir, corpus, **{name: value})


def test_empty_selections(tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "x")])
    with pytest.raises(PilekitError, match=r"no documents of Books3 in the one shard of .*; `pilekit stats` shows"):
        bits_per_byte(model_dir, shard, subsets=["Books3"])
    with pytest.raises(PilekitError, match="subsets is empty"):
        bits_per_byte(model_dir, shard, subsets=[])
    with pytest.raises(PilekitError, match="unknown subset"):
        bits_per_byte(model_dir, shard, subsets=["Bux"])
    (tmp_path / "blank.jsonl").write_text("\n")
    with pytest.raises(PilekitError, match="no documents in the one shard of"):
        bits_per_byte(model_dir, tmp_path / "blank.jsonl")
    caplog.clear()
    assert list(bits_per_byte(model_dir, shard, subsets=["Books3", "arxiv"]).subsets) == ["ArXiv"]
    assert "no documents of Books3 in " in caplog.text


def test_of_a_corpus_with_held_out_shards_only_they_are_scored(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train" / "00.jsonl", [("ArXiv", "train")])
    write(tmp_path / "val.jsonl", [("ArXiv", "val")])
    write(tmp_path / "test.jsonl", [("ArXiv", "test")])
    with caplog.at_level(logging.WARNING):
        result = bits_per_byte(model_dir, tmp_path)
    assert [shard["name"] for shard in result.protocol["data"]] == ["test.jsonl", "val.jsonl"]
    assert result.overall.bytes == 7
    said = "only the held-out shards are taken: test.jsonl, val.jsonl; to take the others, name them without these"
    assert said in caplog.text
    caplog.clear()
    for data in (tmp_path / "train", Corpus(tmp_path).split("train")):
        assert bits_per_byte(model_dir, data).overall.bytes == 5
    part = Corpus(tmp_path).only_held_out()
    caplog.clear()
    assert part.only_held_out() is part
    assert caplog.text == ""


def test_a_model_in_training_is_left_as_it_was(model_dir: Path, corpus: Path) -> None:
    """Dropout is off while scoring, the mode and the random numbers are as before, and training goes on."""
    tokenizer = load_tokenizer(model_dir)
    torch.manual_seed(0)
    model = tiny_model("gpt2")  # with dropout
    expected = score_corpus(as_causal_lm(model.eval()), tokenizer, Corpus(corpus)).overall
    lm = as_causal_lm(model.train())
    before = torch.get_rng_state()
    assert score_corpus(lm, tokenizer, Corpus(corpus)).overall == expected
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    model(input_ids=torch.zeros(1, 8, dtype=torch.long), labels=torch.zeros(1, 8, dtype=torch.long)).loss.backward()
    with pytest.raises(PilekitError, match="prefix"):
        score_corpus(lm, tokenizer, Corpus(corpus), prefix="x")
    assert model.training


def test_progress_follows_the_scoring(model_dir: Path, tmp_path: Path) -> None:
    """A small shard is read in one go: its bytes are told as its tokens are scored, all of them in the end."""
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "the quick brown fox " * 20)] * 60)
    told: list[int] = []
    bits_per_byte(model_dir, shard, advance=told.append)
    assert sum(told) == shard.stat().st_size
    assert len(told) > 3
    assert all(amount > 0 for amount in told)


def test_progress_is_never_far_behind_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    credit = Credit(told.append)
    for _ in range(100):
        credit.read(1 << 20)
        credit.scored(0)
    assert sum(told) == (100 << 20) - Credit.READ_AHEAD
    credit.all()
    assert sum(told) == 100 << 20


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
        ({"group0": tmp_path / "nowhere"}, "no such file or folder"),
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


def test_bad_lines_are_skipped_and_counted_when_asked(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = write(tmp_path / "good.jsonl", [("ArXiv", "one"), ("Github", "two"), ("ArXiv", "three")])
    lines = good.read_text().splitlines()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "00.jsonl").write_text("\n".join([lines[0], "this is no document", lines[1]]) + "\n")
    (tmp_path / "bad" / "01.jsonl").write_text("\n".join(["{}", lines[2]]) + "\n")
    with pytest.raises(PilekitError, match=r"00\.jsonl, line 2"):
        bits_per_byte(model_dir, tmp_path / "bad")
    caplog.clear()
    result = bits_per_byte(model_dir, tmp_path / "bad", on_error="skip")
    assert result.subsets == bits_per_byte(model_dir, good).subsets
    assert result.protocol["skipped_lines"] == 2
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith("skipped 2 bad lines, the first: ")
    assert "00.jsonl, line 2" in said


def test_too_many_labels_are_no_subsets(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MAX_SUBSETS", 3)
    shard = write(tmp_path / "a.jsonl", [(f"label {n}", "x") for n in range(4)])
    with pytest.raises(PilekitError, match="more than 3 different subset labels"):
        bits_per_byte(model_dir, shard)


def test_result_json(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    result = bits_per_byte(model_dir, corpus, subsets=["ArXiv"], limit=1)
    path = write_result(result, tmp_path / "new" / "folder")
    told = json.loads(path.read_text())
    assert told == result.to_json()
    assert {"overall", "weighted", "subsets", "published", "protocol"} <= set(told)
    assert {"documents", "bytes", "tokens", "bpb", "interval", "nll"} <= set(told["overall"])
    assert told["subsets"]["ArXiv"] == told["overall"]
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_a_shard_without_any_known_label_is_told(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.jsonl", [("Foo\x1b", "x"), ("Bar", "x"), (None, "x")])
    write(tmp_path / "b.jsonl", [("Foo", "x"), ("ArXiv", "x")])
    bits_per_byte(model_dir, tmp_path)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("a.jsonl: has no label that the manifest pile knows, only (none), Bar, Foo\\x1b; if labels")
    caplog.clear()
    bits_per_byte(model_dir, Corpus(tmp_path, manifest_of()))
    assert caplog.text == ""


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


def test_only_documents_of_the_lists(tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are numbered within their subset, over all shards of test, whatever else is asked for."""
    write(tmp_path / "test" / "0.jsonl", [("ArXiv", "a"), ("Github", "bb"), ("ArXiv", "ccc"), ("Ubuntu IRC", "i" * 40)])
    write(tmp_path / "test" / "1.jsonl", [("ArXiv", "dddd"), ("Github", "eeeee")])
    write(tmp_path / "val.jsonl", [("ArXiv", "not of test")])
    lists = tmp_path / "lists.json"
    lists.write_text('{"ArXiv": [0, 2], "Github": [1, 7]}')
    with caplog.at_level(logging.WARNING):
        result = bits_per_byte(model_dir, tmp_path, group0=lists, out=tmp_path / "out")
    assert {name: score.bytes for name, score in result.subsets.items()} == {"ArXiv": 5, "Github": 5, "Ubuntu IRC": 40}
    assert [shard["name"] for shard in result.protocol["data"]] == ["test/0.jsonl", "test/1.jsonl"]
    assert result.protocol["group0"].startswith("xxh3:")
    assert "the lists of group0 name 1 documents that are not in" in caplog.text
    only = bits_per_byte(model_dir, tmp_path, group0=lists, subsets=["github"], limit=1)
    assert {name: score.bytes for name, score in only.subsets.items()} == {"Github": 5}
    with pytest.raises(PilekitError, match=r"val\.jsonl: is a val shard, and group0 numbers the documents of test"):
        bits_per_byte(model_dir, tmp_path / "val.jsonl", group0=lists)


PILE_LABELS = [subset.name for subset in load_manifest().subsets]


@pytest.mark.parametrize(
    ("labels", "arguments", "why"),
    [
        (PILE_LABELS, {}, None),
        (PILE_LABELS, {"limit": 2}, "only 1 of the Pile's 22 labels were met in these shards; --limit may have ended"),
        ([*PILE_LABELS, "Mine"], {}, "these shards have a label that is none of the Pile's: Mine"),
        (["ArXiv", "Mine", "Other"], {}, "these shards have a label that is none of the Pile's: Mine and 1 more"),
        (["ArXiv", "Github"], {}, "only 2 of the Pile's 22 labels were met in these shards"),
        (PILE_LABELS, {"context_len": 4}, "these windows overlap"),
    ],
)
def test_published_figures_stand_beside_documents_of_the_pile_only(
    labels: list[str], arguments: dict[str, Any], why: str | None, tmp_path: Path, model_dir: Path
) -> None:
    """Also where only one subset is asked for: labels that are passed over count, first read or recorded already."""
    corpus = tmp_path / "corpus"
    write(corpus / "val" / "0.jsonl", [("ArXiv", "a text"), ("ArXiv", "one more")])
    write(corpus / "val" / "1.jsonl", [(label, "a text") for label in labels])
    for _ in range(2):
        result = bits_per_byte(model_dir, corpus, subsets=["arxiv"], out=tmp_path / "out", **arguments)
        assert (result.published is None) == (why is not None)
        assert (result.withheld or "").startswith(why or "")
        assert list(result.subsets) == ["ArXiv"]
        again = read_result(tmp_path / "out")
        assert (again.published, again.withheld) == (result.published, result.withheld)
    every = bits_per_byte(model_dir, corpus, **{name: v for name, v in arguments.items() if name != "limit"})
    if "limit" not in arguments:
        assert every.withheld == result.withheld
        assert every.protocol["labels"] == result.protocol["labels"]


def test_few_foreign_labels_are_told(tmp_path: Path, model_dir: Path) -> None:
    foreign = [(f"label {n}", "x") for n in range(100)]
    shard = write(tmp_path / "val.jsonl", [*foreign, ("Github", "x"), ("ArXiv", "x")])
    result = bits_per_byte(model_dir, shard, subsets=["Github"])
    labels = result.protocol["labels"]
    assert labels[:3] == [*(name for name in PILE_LABELS if name in ("ArXiv", "Github")), "label 0"]
    assert len(labels) == 32
    assert result.overall.documents == 1


def test_where_there_is_no_figure_a_warning_says_so(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = write(tmp_path / "empty.jsonl", [("ArXiv", ""), ("Github", "")])
    single = write(tmp_path / "single.jsonl", [("ArXiv", "x")])
    for shard, prefix, said in (
        (empty, "auto", "no byte was scored, so there is no figure: no text in 2 documents"),
        (single, "none", "no token was predicted, so there is no figure: the first of a document is not, without"),
    ):
        caplog.clear()
        result = bits_per_byte(model_dir, shard, prefix=prefix)
        assert result.overall.bpb is None
        [warning] = result.warnings
        assert warning.startswith(said)
        assert caplog.messages == [warning]
        assert result.to_json()["warnings"] == [warning]


def test_constants_of_another_tokenizer_are_warned_of(
    tmp_path: Path, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tiny model's tokens are short."""
    shard = write(tmp_path / "val.jsonl", [(label, "Some text of words and words. " * 3) for label in PILE_LABELS])
    result = bits_per_byte(model_dir, shard, paper=True)
    [warning] = result.warnings
    assert warning.startswith("the paper's constants are those of the GPT-2 tokenizer, by which this text has 0.")
    assert f"here it has {result.overall.tokens_per_byte:.3f}" in warning
    assert caplog.messages == [warning]
    assert (result.published, result.withheld) == (None, "the paper's constants are not those of this tokenizer")
    caplog.clear()
    assert bits_per_byte(model_dir, shard).published is not None
    assert caplog.messages == []


def test_copies_in_the_training_shards_are_counted(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path / "val.jsonl", [("ArXiv", "one"), ("Github", "two"), ("ArXiv", "three")])
    train = write(tmp_path / "train" / "00.jsonl", [("Github", "three"), ("Github", "four"), ("Github", "three")])
    result = bits_per_byte(model_dir, tmp_path / "val.jsonl", train=train, out=tmp_path / "out")
    assert result.training_copies is not None
    assert result.training_copies.overall == 1
    assert result.training_copies.subsets == {"ArXiv": 1, "Github": 0}
    assert read_result(tmp_path / "out").training_copies == result.training_copies


def test_every_pile_subset_can_be_named(model_dir: Path, tmp_path: Path) -> None:
    names = [subset.name for subset in load_manifest().subsets]
    shard = write(tmp_path / "a.jsonl", [(name, f"text of {name}") for name in reversed(names)])
    assert list(bits_per_byte(model_dir, shard).subsets) == names


def test_real_text_equals_the_reference(real_corpus: Path, model_dir: Path) -> None:
    shard = real_corpus / "val.jsonl.zst"
    result = bits_per_byte(model_dir, shard, limit=1)
    firsts: dict[str, list[str]] = {}
    for batch in read_corpus(Corpus(shard)):
        for text, subset in zip(batch.texts, batch.subsets, strict=True):
            firsts.setdefault(subset, [text])
    short = {subset: texts for subset, texts in firsts.items() if len(texts[0]) < 3000}
    assert short
    for subset, (_, bpb) in expected_scores(model_dir, short).items():
        assert result.subsets[subset].bpb == pytest.approx(bpb, rel=1e-6)
