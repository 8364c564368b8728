"""Finding tokenizers, choosing the backend, and refusing wrong files."""

from __future__ import annotations

import functools
import logging
import pickle
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pilekit.errors import PilekitError
from pilekit.tokenize import load_tokenizer, loading
from tests.tokenize.making import byte_level_bpe, saved


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return saved(byte_level_bpe(300), tmp_path / "some.json")


@pytest.fixture(autouse=True)
def no_warning_yet() -> None:
    loading._warn_once.cache_clear()


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    saved(byte_level_bpe(300, added=("<|custom|>",)), tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_text(
        '{"eos_token": "<|padding|>", "bos_token": {"content": "<|custom|>"}}'
    )
    assert load_tokenizer(tmp_path).eos_id == 1
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|custom|>"}, "pad_token": null}')
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.path == tmp_path / "tokenizer.json"
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (300, 300, 1)
    assert tokenizer.vocab_size == 301
    # The folder and its tokenizer.json are the same tokenizer. For a file of another name the configs do not count.
    assert load_tokenizer(tmp_path / "tokenizer.json").eos_id == 300
    assert load_tokenizer(shutil.copy(tmp_path / "tokenizer.json", tmp_path / "other.json")).eos_id == 0
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / name).write_text('{"eos_token": "</s>"}')  # no token of this tokenizer
    assert load_tokenizer(tmp_path).eos_id == 0
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": ')
    with pytest.raises(PilekitError, match=r"cannot read .*tokenizer_config\.json"):
        load_tokenizer(tmp_path)


def test_tokenizer_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILEKIT_CACHE", str(tmp_path / "cache"))
    bpe = byte_level_bpe(300, added=("<|custom|>",))
    texts = ["Déjà vu <|custom|> <|endoftext|>\n\t" * 40, "", "x"]
    held = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|padding|>")
    held.save_pretrained(tmp_path / "saved")
    held.backend_tokenizer.enable_truncation(5)
    held.backend_tokenizer.enable_padding(length=50)
    opened = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for given, eos_id in ((held, 1), (opened, 1), (bpe, 0)):
        tokenizer = load_tokenizer(given)
        assert tokenizer.eos_id == eos_id
        ids, offsets = tokenizer.encode_batch(texts)
        if given is bpe:
            bpe.encode_special_tokens = True
            expected = [one.ids for one in bpe.encode_batch(texts, add_special_tokens=False)]
        else:
            expected = given(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.encode_batch(texts)[0].tolist() == ids.tolist()
    assert load_tokenizer(opened).path == tmp_path / "saved" / "tokenizer.json"
    assert load_tokenizer(held).path == load_tokenizer(held).path
    assert load_tokenizer(held).path.is_relative_to(tmp_path / "cache")  # an object alone knows no file
    opened.add_tokens(["<|later|>"])  # no longer the tokenizer of the file
    assert load_tokenizer(opened).path.is_relative_to(tmp_path / "cache")
    assert load_tokenizer(opened).vocab_size == 302


def test_a_name_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    saved(byte_level_bpe(300), snapshot / "tokenizer.json")
    (snapshot / "tokenizer_config.json").write_text('{"eos_token": "<|padding|>"}')
    from huggingface_hub import file_download

    monkeypatch.setattr(file_download.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *arguments: pytest.fail("the network was asked"))
    tokenizer = load_tokenizer("some/model")
    assert tokenizer.path == snapshot / "tokenizer.json"
    assert tokenizer.eos_id == 1
    with pytest.raises(PilekitError, match=r"no tokenizer 'some/other'.*local Hugging Face cache"):
        load_tokenizer("some/other")


def test_what_is_no_tokenizer(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fails(match: str, path: Any, **options: Any) -> None:
        with pytest.raises(PilekitError, match=match) as caught:
            load_tokenizer(path, **options)
        assert str(caught.value).isprintable()

    for name in ("missing.json", "no/such/tokenizer.json", "a--b", "../x", "x" * 200, "a\n\x1b[31m\u202e"):
        fails("no tokenizer ", name)
    fails(r"no tokenizer\.json in the folder", tmp_path)
    fails(r"a tokenizer is a tokenizer\.json, .* not None", None)
    fails("unknown tokenizer backend 'slow'", file, backend="slow")
    fails("special_tokens='no'", file, special_tokens="no")
    path = tmp_path / "a\n\x1b[31m.json"
    for content in (
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"model": 3}',
        b'{"model": {"type": "Nonsense"}}',
        b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [3]}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
    ):
        path.write_bytes(content)
        fails(r"is not a tokenizer\.json", path)


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_nothing_is_added_cut_or_padded(tmp_path: Path, backend: Any) -> None:
    """RoBERTa's template does not stand in the way of the fast encoder."""
    made = byte_level_bpe(300)
    plain = load_tokenizer(saved(made, tmp_path / "plain.json"))
    made.post_processor = processors.RobertaProcessing(("<|padding|>", 1), ("<|endoftext|>", 0))
    roberta = load_tokenizer(saved(made, tmp_path / "roberta.json"))
    assert roberta.backend == plain.backend == "fastokens"
    assert (roberta.around(), plain.around()) == (([0], [1]), ([], []))
    made.enable_truncation(2)
    made.enable_padding(length=7, pad_id=1, pad_token="<|padding|>")
    made.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    model = orjson.loads(made.to_str())["model"] | {"dropout": 0.5}
    loud = load_tokenizer(saved(made, tmp_path / "loud.json", model=model), backend=backend)
    texts = ["The quick brown fox jumps", "a", "", "ü"]
    expected = [part.tolist() for part in plain.encode_batch(texts)]
    for tokenizer in (roberta, loud):
        assert [part.tolist() for part in tokenizer.encode_batch(texts)] == expected


def without(name: str, left: Any) -> Any:
    """A fast encoder without a part of the tokenizer, which is right on nearly every text."""

    def defect(real: Any) -> Any:
        def encoder(json_text: str, special_tokens: Any) -> Any:
            content = orjson.loads(json_text)
            content[name] = left(content[name])
            return real(orjson.dumps(content).decode(), special_tokens)

        return encoder

    return defect


def parsing_special_tokens(real: Any) -> Any:
    return lambda json_text, special_tokens: real(json_text, "parse")


class PanicException(BaseException):
    """Like the exception of a Rust panic."""


def raising(error: BaseException) -> Any:
    def encoder(json_text: str, special_tokens: Any) -> Any:
        raise error

    return lambda real: encoder


def with_encoder(monkeypatch: pytest.MonkeyPatch, encoder: Any) -> None:
    """Take this fast encoder for the rest of the test, and forget which encoders were proved before."""
    monkeypatch.setattr(loading, "fast_encoder", encoder)
    monkeypatch.setattr(loading, "_agreed_fast_encoder", functools.cache(loading._agreed_fast_encoder.__wrapped__))


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (without("normalizer", lambda _: None), "gives other ids"),
        (parsing_special_tokens, "gives other ids"),
        (without("added_tokens", lambda tokens: [one for one in tokens if one["special"]]), "gives other ids"),
        (raising(ValueError("an unknown kind")), "does not know this kind of tokenizer"),
        (raising(PanicException("index out of bounds")), "does not know this kind of tokenizer"),
        (raising(ModuleNotFoundError("No module named 'fastokens'")), "is not installed"),
    ],
)
def test_a_fast_encoder_with_a_defect_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, defect: Any, said: str
) -> None:
    path = saved(byte_level_bpe(300, nfc=True, added=("   ",)), tmp_path / "t.json")
    right = load_tokenizer(path)
    assert right.backend == "fastokens"
    with_encoder(monkeypatch, defect(loading.fast_encoder))
    with caplog.at_level(logging.WARNING):
        tokenizers = [load_tokenizer(path), load_tokenizer(path)]
    assert [tokenizer.backend for tokenizer in tokenizers] == ["tokenizers"] * 2
    assert len(caplog.records) == 1
    assert said in caplog.text
    texts = ["cafe\u0301   <|endoftext|>"]
    assert np.array_equal(tokenizers[0].encode_batch(texts)[0], right.encode_batch(texts)[0])
    with pytest.raises(PilekitError, match=f"fastokens cannot serve.*{said}"):
        load_tokenizer(path, backend="fastokens")
    assert load_tokenizer(path, backend="tokenizers").backend == "tokenizers"


@pytest.mark.parametrize("error", [ValueError("match limit exceeded"), PanicException("index out of bounds")])
def test_a_batch_on_which_the_fast_encoder_gives_up_is_encoded_by_the_reference(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = loading.fast_encoder

    def giving_up(json_text: str, special_tokens: Any) -> Any:
        encode = real(json_text, special_tokens)

        def limited(texts: list[str]) -> Any:
            if "hostile" in texts:
                raise error
            return encode(texts)

        return limited

    expected = load_tokenizer(file).encode_batch(["hostile", "text"])
    with_encoder(monkeypatch, giving_up)
    tokenizer = load_tokenizer(file)
    assert tokenizer.backend == "fastokens"
    for ours, right in zip(tokenizer.encode_batch(["hostile", "text"]), expected, strict=True):
        assert np.array_equal(ours, right)


def test_other_models_than_bpe_are_served_by_the_reference(tmp_path: Path) -> None:
    word_piece = Reference(
        models.WordPiece({"[UNK]": 0, "[PAD]": 1, "[SEP]": 2, "un": 3, "##able": 4, "a": 5}, unk_token="[UNK]")
    )
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.add_special_tokens(["[UNK]", "[PAD]", "[SEP]"])
    tokenizer = load_tokenizer(saved(word_piece, tmp_path / "t.json"))
    assert tokenizer.encode_batch(["Unable a zebra", ""])[0].tolist() == [3, 4, 5, 0]
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (2, None, 1)


def test_a_special_token_that_ordinary_text_reaches_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = Reference(models.WordLevel({"<eos>": 0, "a": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<eos>"])
    path = saved(words, tmp_path / "t.json")
    gaps = Reference(models.WordLevel({"a": 0, "b": 1, "far": 40}, unk_token="a"))
    assert load_tokenizer(saved(gaps, tmp_path / "gaps.json"), backend="tokenizers").vocab_size == 41
    with caplog.at_level(logging.WARNING):
        load_tokenizer(path, backend="tokenizers")
        load_tokenizer(path, backend="tokenizers")
    (warning,) = caplog.records
    assert "'<eos>' in a document becomes that control token" in warning.message


def test_a_huge_id_or_a_device_is_told_before_memory_is_taken(file: Path) -> None:
    """fastokens would abort the whole process, and /dev/zero has no end."""
    plain = orjson.loads(file.read_bytes())
    last = max(plain["model"]["vocab"], key=plain["model"]["vocab"].get)
    added = {"content": "x", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for huge in (2**24, 2**31, 2**32 - 1):
        vocab = {**plain["model"], "vocab": {**plain["model"]["vocab"], last: huge}}
        token = {**added, "id": huge, "special": True}
        for content in ({**plain, "model": vocab}, {**plain, "added_tokens": [*plain["added_tokens"], token]}):
            file.write_bytes(orjson.dumps(content))
            with pytest.raises(PilekitError, match=rf"some.json: has the id {huge:,}; ids up to 16,777,215 are"):
                load_tokenizer(file)
    at_loading = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    at_encoding = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
    for panics in (at_loading, at_encoding):
        file.write_bytes(orjson.dumps({**plain, "normalizer": panics}))
        with pytest.raises(PilekitError, match=r"some.json is not a tokenizer.json that the tokenizers library can re"):
            load_tokenizer(file)
    token = {**added, "id": 300, "special": True, "content": "x" * 100_000}
    file.write_bytes(orjson.dumps({**plain, "added_tokens": [*plain["added_tokens"], token]}))
    with pytest.raises(PilekitError, match=r"some.json: has an added token of 100,000 characters; 65,536 are possible"):
        load_tokenizer(file)
    with pytest.raises(PilekitError, match="the tokenizer /dev/zero is a pipe or a device, not a file"):
        load_tokenizer("/dev/zero")


def test_a_normalizer_that_asks_for_all_memory_is_refused(file: Path) -> None:
    """In another process, because tokenizers ends it. The steps may be nested, and each alone is possible."""
    corpus = file.with_name("a.jsonl")
    corpus.write_text('{"text": "a", "meta": {"pile_set_name": "ArXiv"}}\n')
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 4096}
    plain = orjson.loads(file.read_bytes())
    for steps in ([longer] * 3, [longer, {"type": "Sequence", "normalizers": [longer] * 2}]):
        file.write_bytes(orjson.dumps({**plain, "normalizer": {"type": "Sequence", "normalizers": steps}}))
        ended = subprocess.run(
            [sys.executable, "-m", "pilekit", "tokenize", corpus, "--tokenizer", file, "--out", file.parent / "out"],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 1
        assert ended.stderr.count("\n") == 1
        assert "its normalizer makes a text over 1,000 times as long" in ended.stderr


def test_rules_that_fail_only_at_some_texts_are_one_line_that_names_the_file(file: Path) -> None:
    """A regular expression may give up, a vocabulary may know no unknown words, a template may have no text."""
    plain = orjson.loads(file.read_bytes())
    gives_up = {"type": "Split", "pattern": {"Regex": r"(\w+\s*)+\d$"}, "behavior": "Isolated", "invert": False}
    lacking = {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1}, "unk_token": "?"}
    for changes, text in (
        ({"pre_tokenizer": gives_up}, "letters and words " * 20),
        ({"model": lacking, "added_tokens": [], "pre_tokenizer": None}, "b"),
    ):
        file.write_bytes(orjson.dumps({**plain, **changes}))
        tokenizer = load_tokenizer(file, backend="tokenizers")
        assert len(tokenizer.encode_batch(["a"])[0]) == 1
        for encode in (lambda: tokenizer.encode_batch([text]), lambda: tokenizer.encode_with_spans(text)):  # noqa: B023
            with pytest.raises(PilekitError, match=r"some\.json: its rules fail at a text \(") as told:
                encode()
            assert str(told.value).isprintable()
    file.write_bytes(orjson.dumps({**plain, "normalizer": {"type": "Prepend", "prepend": ""}}))
    with pytest.raises(PilekitError, match=r"some\.json: its rules fail at a text"):
        load_tokenizer(file)
