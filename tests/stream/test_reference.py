"""What the reference rests on, and that it keeps the promises itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.stream.order.shuffle import mix, permutation
from tests.stream.corpora import Made, mixed
from tests.stream.reference import Document, Encoder, Plan, lane_documents, lane_rows, windows
from tests.tiny import tiny_tokenizer

WORD = (1 << 64) - 1


def plain_mix(*parts: int) -> int:
    state = 0
    for part in parts:
        state = ((state ^ part & WORD) + 0x9E3779B97F4A7C15) & WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
        state ^= state >> 31
    return state


def philox_words(key: int, count: int) -> list[int]:
    """Philox 4x64-10 (Salmon et al. 2011), counting from 1 as numpy does."""
    words: list[int] = []
    block = 0
    while len(words) < count:
        block += 1
        a, b, c, d = block, 0, 0, 0
        low, high = key & WORD, key >> 64
        for _ in range(10):
            first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
            a, b, c, d = second >> 64 ^ b ^ low, second & WORD, first >> 64 ^ d ^ high, first & WORD
            low, high = low + 0x9E3779B97F4A7C15 & WORD, high + 0xBB67AE8584CAA73B & WORD
        words += [a, b, c, d]
    return words[:count]


@given(st.lists(st.integers(-(1 << 63), WORD), max_size=5))
def test_mix_is_a_chain_of_splitmix64(parts: list[int]) -> None:
    assert int(mix(*parts)) == plain_mix(*parts)
    arrays = [np.array([part & WORD, 7], np.uint64) for part in parts]
    if parts:
        assert mix(*arrays).tolist() == [plain_mix(*parts), plain_mix(*[7] * len(parts))]
        assert mix(parts[0], *arrays[1:]).tolist() == (
            [plain_mix(*parts), plain_mix(parts[0], *[7] * (len(parts) - 1))] if parts[1:] else plain_mix(*parts)
        )


def test_mix_of_its_first_word_is_splitmix64s_first() -> None:
    assert int(mix(0)) == 0xE220A8397B1DCDAF, "the first output of splitmix64 from the state 0, as published"


@given(st.integers(0, 40), st.integers(-5, WORD), st.lists(st.integers(0, 1 << 40), max_size=3))
def test_permutation_sorts_the_words_of_philox(n: int, seed: int, key: list[int]) -> None:
    digest = hashlib.sha256(repr((seed, tuple(key))).encode()).digest()
    words = philox_words(int.from_bytes(digest[:16], "little"), n)
    assert permutation(n, seed, *key).tolist() == sorted(range(n), key=words.__getitem__)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return mixed(tmp_path_factory.mktemp("corpus"), documents=300)


@pytest.fixture(scope="module")
def encode(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_the_reference_covers_each_epoch(packing: str, corpus: Made, encode: Encoder) -> None:
    plan = Plan(
        corpus.shards,
        *(4, 2, 8, 64),
        window=16,
        packing=packing,  # type: ignore[arg-type]
        repeats={"ArXiv": 2.0, "Github": 0.0},
    )
    wanted = {line: 2 if line.subset == "ArXiv" else 1 for line in corpus.lines if line.subset != "Github"}
    units = -(-len(wanted) // max(1, len(wanted) // 128))
    used: Counter[object] = Counter()
    tokens: Counter[object] = Counter()
    for lane in range(plan.lanes):

        def in_epoch(document: Document) -> bool:
            return document.position < 2 * units

        documents = list(takewhile(in_epoch, lane_documents(corpus.lines, plan, encode, lane)))
        used.update(document.line for document in documents)
        for row in lane_rows(iter(documents), plan):
            assert 0 < sum(piece.length for piece in row) <= 64
            for piece in row:
                tokens[piece.document.line] += piece.length
                whole = piece.length == len(piece.document.tokens)
                assert packing == "concat" or whole or piece.begin % 64 == 0
    assert used == wanted
    assert tokens == {line: count * len(encode(line.text)) for line, count in wanted.items()}


def test_windows_close_at_so_many_documents_or_tokens(encode: Encoder, corpus: Made) -> None:
    plan = Plan(("00.jsonl",), 1, 1, 1, 64, window=3)
    line = corpus.lines[0]

    def documents(*lengths: int) -> list[Document]:
        return [Document(0, 0, index, line, [2] * length) for index, length in enumerate(lengths)]

    def sizes(*lengths: int) -> list[int]:
        return [len(window) for window in islice(windows(iter(documents(*lengths)), plan), 10)]

    assert sizes(1, 1, 1, 1) == [3, 1]
    assert sizes(524_287, 1, 1) == [2, 1]
    assert sizes(524_288, 1, 1, 1) == [1, 3]
