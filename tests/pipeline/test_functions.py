"""Stages made from functions of one document: their argument and results, and errors that name the function."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.documents import Document
from pilekit.errors import PilekitError
from pilekit.pipeline.functions import DocumentFilter, DocumentMap, document_filter, document_map
from tests.pipeline.making import batch, cut, identities


@document_filter
def even(document: Document) -> bool:
    return document.number % 2 == 0


@document_map
def doubled(document: Document) -> str:
    return document.text * 2


def raising(document: Document) -> Any:
    return 1 / (5 - document.number)


def test_a_function_sees_the_document() -> None:
    seen = []

    @document_filter
    def watch(document: Document) -> bool:
        seen.append(document)
        return True

    one = batch(["a", "b"], ["ArXiv", "(none)"], shard="train/07.jsonl", first=41)
    assert list(watch(iter([one]))) == [one]
    assert seen == [
        Document("a", {"pile_set_name": "ArXiv"}, "ArXiv", 41, "train/07.jsonl"),
        Document("b", {"pile_set_name": "(none)"}, "(none)", 42, "train/07.jsonl"),
    ]
    assert next(iter(DocumentMap(lambda document: document.text)(iter([one])))) is one, "nothing is changed"


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=20), st.lists(st.integers(0, 8)))
def test_filter_and_map_however_batched(texts: list[str], lengths: list[int]) -> None:
    whole = batch(texts)
    every = [("00.jsonl", n, "ArXiv", text) for n, text in enumerate(texts)]
    assert identities(even(cut(whole, lengths))) == every[::2]
    assert identities(doubled(cut(whole, lengths))) == [(*one[:3], one[3] * 2) for one in every]


def test_an_error_names_the_function_and_the_document_in_one_line() -> None:
    for kind in (DocumentFilter, DocumentMap):
        with pytest.raises(
            PilekitError, match=r"^train/0\.jsonl: document 5: the function raising raised Zero"
        ) as caught:
            list(kind(raising)(iter([batch(["x"], shard="train/0.jsonl", first=5)])))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    @document_filter
    def hostile(document: Document) -> bool:
        raise ValueError("x\n\x1b[31my" + "z" * 1000)

    with pytest.raises(PilekitError, match=r"raised ValueError: x\\x0a\\x1b\[31myz+…$") as caught:
        list(hostile(iter([batch(["x"], shard="a\n\x1b.jsonl")])))
    assert len(str(caught.value)) < 400
    assert not {"\n", "\x1b"} & set(str(caught.value))


def test_wrong_results_are_errors_and_interrupts_are_not() -> None:
    for kind, wanted, wrong in ((DocumentFilter, "bool", None), (DocumentFilter, "bool", 1), (DocumentMap, "str", b"")):
        with pytest.raises(PilekitError, match=f"returned {type(wrong).__name__}; it must return {wanted}"):
            list(kind(lambda document, wrong=wrong: wrong)(iter([batch(["x"])])))

    def interrupted(document: Document) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(DocumentFilter(interrupted)(iter([batch(["a"])])))


def test_decorated_functions_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(even)) is even
    assert pickle.loads(pickle.dumps(DocumentFilter(raising))) == DocumentFilter(raising)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(document_map(lambda document: document.text))
