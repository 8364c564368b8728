"""Ids equal those of `tokenizers`, the slow reference, which gets one text at a time; `Tokenize` keeps identities."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import orjson
import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.tokenize import Tokenize, Tokenizer, load_tokenizer, loading
from pilekit.tokenize.probe import probe_texts
from pilekit.tokenize.tokenizer import Backend, SpecialTokens
from tests.pipeline.making import batch
from tests.tokenize.making import GPT4_SPLIT, byte_level_bpe, hard_texts, saved

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nfc with added tokens": {"nfc": True, "added": ("    ", "  ", "caf\xe9", "foo bar")},
    "gpt-4 split": {"split": GPT4_SPLIT},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        name: saved(byte_level_bpe(**arguments), folder / f"{number}.json")
        for number, (name, arguments) in enumerate(KINDS.items())
    }


def one_by_one(path: Path, texts: list[str], parse: bool = False) -> list[list[int]]:
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.encode_special_tokens = not parse
    return [reference.encode(text, add_special_tokens=False).ids for text in texts]


def documents(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    ids, offsets = tokenizer.encode_batch(texts)
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    assert offsets.shape == (len(texts) + 1,)
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    return [ids[start:end].tolist() for start, end in pairwise(offsets)]


def added_tokens(path: Path) -> list[str]:
    return [token["content"] for token in orjson.loads(path.read_bytes())["added_tokens"]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_set_and_fuzzed_texts_are_encoded_as_one_by_one(files: dict[str, Path], kind: str) -> None:
    path = files[kind]
    texts = probe_texts(added_tokens(path))
    for special_tokens in get_args(SpecialTokens):
        expected = one_by_one(path, texts, parse=special_tokens == "parse")
        for backend in get_args(Backend):
            tokenizer = load_tokenizer(path, backend=backend, special_tokens=special_tokens)
            assert tokenizer.backend == backend
            assert documents(tokenizer, texts) == expected
        check_fuzzed(path, special_tokens)


def check_fuzzed(path: Path, special_tokens: SpecialTokens) -> None:
    tokenizer = load_tokenizer(path, backend="fastokens", special_tokens=special_tokens)
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.encode_special_tokens = special_tokens == "text"

    @settings(deadline=None)
    @given(st.lists(hard_texts(added_tokens(path)), max_size=6))
    def check(texts: list[str]) -> None:
        found = documents(tokenizer, texts)
        assert found == [reference.encode(text, add_special_tokens=False).ids for text in texts]
        if reference.normalizer is None:  # Every text comes back.
            assert [tokenizer.decode(ids) for ids in found] == texts

    check()


@pytest.mark.parametrize("backend", get_args(Backend))
def test_special_cases(files: dict[str, Path], backend: Backend) -> None:
    """Empty texts, special tokens in a text, added tokens that are not special."""
    tokenizer = load_tokenizer(files["plain"], backend=backend)
    assert documents(tokenizer, []) == []
    assert [len(ids) > 0 for ids in documents(tokenizer, ["", "a", "", "b", ""])] == [False, True, False, True, False]
    hostile = "one<|endoftext|>two<|padding|><|endoftext|>"
    ids, _ = tokenizer.encode_batch([hostile])
    assert not {tokenizer.eos_id, tokenizer.pad_id} & set(ids.tolist())
    assert tokenizer.decode(ids) == hostile
    parsed, _ = load_tokenizer(files["plain"], backend=backend, special_tokens="parse").encode_batch([hostile])
    assert (parsed.tolist().count(0), parsed.tolist().count(1)) == (2, 1)
    with_added = load_tokenizer(files["nfc with added tokens"], backend=backend)
    assert [len(ids) for ids in documents(with_added, ["    ", "foo bar", "caf\xe9", "cafe\u0301"])] == [1] * 4


def test_pickled_it_is_the_same_tokenizer_unless_the_file_has_changed(tmp_path: Path) -> None:
    path = saved(byte_level_bpe(300), tmp_path / "tokenizer.json")
    names = ("path", "backend", "special_tokens", "fingerprint", "eos_id", "bos_id", "pad_id", "vocab_size")
    for backend in get_args(Backend):
        tokenizer = load_tokenizer(path, backend=backend, special_tokens="parse")
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert [getattr(copy, name) for name in names] == [getattr(tokenizer, name) for name in names]
        assert documents(copy, ["a<|endoftext|>b"]) == documents(tokenizer, ["a<|endoftext|>b"])
    old = pickle.dumps(load_tokenizer(path))
    first = pickle.loads(old)
    assert pickle.loads(old) is first
    saved(byte_level_bpe(301), path)
    new = load_tokenizer(path)
    assert pickle.loads(pickle.dumps(new)).fingerprint == new.fingerprint != first.fingerprint
    loading.reopen.cache_clear()
    with pytest.raises(PilekitError, match="has changed since it was loaded"):
        pickle.loads(old)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_give_the_same_ids(files: dict[str, Path], method: str) -> None:
    tokenizer = load_tokenizer(files["plain"])
    texts = ["The quick brown fox " * 500] * 8
    expected = documents(tokenizer, texts)  # the encoder's threads run before the fork
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(documents, (tokenizer, texts)).get(60) == expected


def real_texts(shard: Path) -> list[str]:
    with shard.open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    return [orjson.loads(line)["text"] for line in data.split(b"\n") if line.strip()]


def test_neox_facts_and_real_text(real_corpus: Path) -> None:
    tokenizer = load_tokenizer(neox := real_corpus / "20B_tokenizer.json")
    assert tokenizer.backend == "fastokens"
    texts = real_texts(real_corpus / "val.jsonl.zst")[:100]
    assert documents(tokenizer, texts) == one_by_one(neox, texts)
    check_fuzzed(neox, "text")
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size) == (0, 1, 50277)
    assert tokenizer.fingerprint == "56ac4821e129d2c520fdaba60abd920fa852ada51b45c0dd52bbb6bd8c985ade"
    # Runs of 24 down to 2 spaces are the added tokens 50254 to 50276, none of them special.
    assert documents(tokenizer, [" " * n for n in range(24, 1, -1)]) == [[number] for number in range(50254, 50277)]
    for text, after in (("e\u0301", "\xe9"), ("\u212b", "\xc5"), ("\u0344", "\u0308\u0301"), ("\uf900", "\u8c48")):
        assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == after  # NFC


def test_each_batch_becomes_the_tokens_of_its_documents(files: dict[str, Path]) -> None:
    tokenizer, read = load_tokenizer(files["plain"]), itertools.count()
    inputs = [batch(["one", "", "three"], ["a", "b", "a"], first=7), batch([]), batch(["four"], None, "01.jsonl", 100)]
    outputs = list(Tokenize(tokenizer)(iter(inputs)))
    assert [(out.shard, out.numbers.tolist(), out.subsets) for out in outputs] == [
        ("00.jsonl", [7, 8, 9], ["a", "b", "a"]),
        ("01.jsonl", [100], ["ArXiv"]),
    ]
    assert [len(out) for out in outputs] == [3, 1]
    texts = [tokenizer.decode(out.ids[start:end]) for out in outputs for start, end in pairwise(out.offsets)]
    assert texts == ["one", "", "three", "four"]
    out = Tokenize(tokenizer.path)(batch([f"text {number}"]) for number in read)  # The tokenizer may be a path.
    assert next(read) == 0, "nothing is read before it is asked for"
    next(out)
    assert next(read) == 2
