"""`Tokenize` alone: identities, laziness, errors."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError
from pilekit.tokenize import TokenBatch, Tokenize, Tokenizer, load_tokenizer
from tests.pipeline.making import batch
from tests.tokenize.making import byte_level_bpe, saved


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(saved(byte_level_bpe(300), tmp_path_factory.mktemp("t") / "tokenizer.json"))


def test_each_batch_becomes_the_tokens_of_its_documents(tokenizer: Tokenizer) -> None:
    read = itertools.count()
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


def test_lone_surrogate_is_named_by_document(tokenizer: Tokenizer) -> None:
    with pytest.raises(PilekitError, match=r"00\.jsonl: document 6 holds a lone surrogate"):
        list(Tokenize(tokenizer)(iter([DocumentBatch(["a", "b", "\udc00"], [""] * 3, "00.jsonl", 3 * np.arange(3))])))
    with pytest.raises(PilekitError, match=r"^a\\x0a\\x1b\.jsonl: document 0 "):
        list(Tokenize(tokenizer)(iter([DocumentBatch(["\udc00"], [""], "a\n\x1b.jsonl", np.arange(1))])))


def test_columns_must_fit() -> None:
    ids, offsets, numbers = np.arange(3, dtype=np.uint32), np.array([0, 3]), np.array([0])
    TokenBatch(ids, offsets, "s", numbers, ["x"])
    for wrong in (
        (ids[:2], offsets, numbers, ["x"]),
        (ids, np.array([0, 1, 3]), numbers, ["x"]),
        (ids, offsets, np.array([0, 1]), ["x"]),
        (ids, offsets, numbers, []),
    ):
        with pytest.raises(PilekitError, match="columns that do not fit"):
            TokenBatch(wrong[0], wrong[1], "s", wrong[2], wrong[3])
