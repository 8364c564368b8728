"""Stages chained: order, laziness, early ends, and the chain of the documentation with Tokenize at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilekit.documents import Document, DocumentBatch
from pilekit.errors import PilekitError
from pilekit.pipeline.functions import document_filter, document_map
from pilekit.pipeline.pipeline import Pipeline
from pilekit.pipeline.stages import Match, MinBytes, Sample, Select, Write
from pilekit.tokenize import Tokenize, load_tokenizer
from tests.pipeline.making import batch, cut, identities
from tests.tokenize.making import byte_level_bpe, saved


@document_filter
def not_the_third(document: Document) -> bool:
    return document.number != 3


@document_map
def shouted(document: Document) -> str:
    return document.text.upper()


TEXTS = ["alpha beta", "gamma", "delta delta", "epsilon", "zeta eta theta", "iota", "kappa lambda", "mu"]
SUBSETS = ["ArXiv", "Github", "ArXiv", "ArXiv", "Books3", "ArXiv", "Github", "ArXiv"]


def by_hand() -> list[tuple[str, int, str, str]]:
    """The documents that the chain below keeps, computed by hand."""
    return [
        ("00.jsonl", number, subset, text.upper())
        for number, (text, subset) in enumerate(zip(TEXTS, SUBSETS, strict=True))
        if subset in ("ArXiv", "Github") and len(text) >= 5 and " " in text and number != 3
    ]


CHAIN = [Select("arxiv", "GitHub"), MinBytes(5), Match(" "), not_the_third, shouted]


def test_a_chain_is_a_stage_however_documents_are_batched() -> None:
    nested = Pipeline([Pipeline(CHAIN[:2]), Pipeline([]), Pipeline([Pipeline(CHAIN[2:])])])
    for lengths in ([], [1] * 8, [0, 3, 0, 5, 0], [8, 0]):
        for pipeline in (Pipeline(CHAIN), nested):
            assert identities(pipeline(cut(batch(TEXTS, SUBSETS), lengths))) == by_hand()
    everything = Pipeline([*CHAIN, Sample(0.5)])
    assert list(everything(iter([]))) == []
    assert list(everything(iter([batch([])]))) == []


class Source(Iterator[DocumentBatch]):
    """Counts the batches that are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __next__(self) -> DocumentBatch:
        self.asked += 1
        return batch(["some text"], first=self.asked)


def test_nothing_is_read_ahead_and_leaving_early_closes_every_stage(tmp_path: Path) -> None:
    closed, source = [], Source()

    def watched(name: str) -> Any:
        def stage(batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
            try:
                yield from batches
            finally:
                closed.append(name)

        return stage

    stages = [watched("first"), Select("ArXiv"), MinBytes(1), Match("text"), Sample(1.0), shouted]
    out = Pipeline([*stages, Write(tmp_path / "out.jsonl"), watched("last"), MinBytes(0)])(source)
    assert source.asked == 0
    for number in range(1, 4):
        next(out)
        assert source.asked == number
    del out
    assert sorted(closed) == ["first", "last"]
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_no_stage_is_refused() -> None:
    for stages in ([Sample(1), MinBytes], ["ArXiv"]):
        with pytest.raises(PilekitError, match=r"is no stage: .* \(it is no function of batches\)"):
            Pipeline(stages)  # type: ignore[arg-type]
    functions: list[Any] = [lambda document: True, lambda document: "x" in document.text, lambda: []]
    for function in functions:
        with pytest.raises(PilekitError, match="mark a function of one document with @document_filter") as raised:
            list(Pipeline([function])([]))
        assert "\n" not in str(raised.value)


def test_it_may_end_in_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(byte_level_bpe(300), tmp_path / "tokenizer.json"))
    (tokens,) = Pipeline([*CHAIN, Tokenize(tokenizer)])(iter([batch(TEXTS, SUBSETS)]))
    assert (tokens.numbers.tolist(), tokens.subsets) == ([n for _, n, *_ in by_hand()], [s for *_, s, _ in by_hand()])
    assert tokenizer.decode(tokens.ids) == "".join(text for *_, text in by_hand())
