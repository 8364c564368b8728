"""Tests of the reference itself: its assumptions, and that it keeps the guarantees."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile

import pytest

from tests.stream.corpora import Made, mixed
from tests.stream.reference import Document, Encoder, Plan, lane_documents, lane_rows, windows
from tests.tiny import tiny_tokenizer

WORD = (1 << 64) - 1


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
