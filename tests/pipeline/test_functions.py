from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.pipeline import Document, DocumentFilter, DocumentMap, document_filter, document_map
from tests.pipeline.making import batch, cut, identities


@document_filter
def even(document: Document) -> bool:
    return document.number % 2 == 0


@document_map
def doubled(document: Document) -> str:
    return document.text * 2


def test_a_function_sees_the_document() -> None:
    seen = []

    @document_filter
    def watch(document: Document) -> bool:
        seen.append(document)
        return True

    one = batch(["a", "b"], ["ArXiv", "(none)"], shard="train/07.jsonl", first=41)
    assert list(watch(iter([one]))) == [one]
    assert seen == [Document("a", "ArXiv", "train/07.jsonl", 41), Document("b", "(none)", "train/07.jsonl", 42)]


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=20)


@given(TEXTS, st.lists(st.integers(0, 8)))
def test_filter_and_map_however_batched(texts: list[str], lengths: list[int]) -> None:
    whole = batch(texts)
    assert identities(even(cut(whole, lengths))) == [
        ("00.jsonl", n, "ArXiv", text) for n, text in enumerate(texts) if n % 2 == 0
    ]
    assert identities(doubled(cut(whole, lengths))) == [
        ("00.jsonl", n, "ArXiv", text * 2) for n, text in enumerate(texts)
    ]
    assert identities(iter([whole] if texts else [])) == [("00.jsonl", n, "ArXiv", t) for n, t in enumerate(texts)]


def test_a_map_that_changes_nothing_gives_the_batch_itself() -> None:
    one = batch(["a", "b"])
    assert next(iter(DocumentMap(lambda document: document.text)(iter([one])))) is one


def raising(document: Document) -> Any:
    return 1 / (5 - document.number)


@pytest.mark.parametrize("kind", [DocumentFilter, DocumentMap])
def test_a_function_that_raises_is_named_with_its_document(kind: Any) -> None:
    with pytest.raises(PilekitError, match=r"^train/00\.jsonl: document \d+: the function \w+ ") as caught:
        list(kind(raising if kind is DocumentMap else lambda_free)(iter([batch(["x"] * 9, shard="train/00.jsonl")])))
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, ZeroDivisionError)


def lambda_free(document: Document) -> bool:
    return bool(raising(document))


def test_the_error_says_what_was_raised() -> None:
    with pytest.raises(PilekitError, match="document 5: the function lambda_free raised ZeroDivisionError: ") as caught:
        list(DocumentFilter(lambda_free)(iter([batch(["x"] * 9)])))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_error_is_one_line_whatever_was_raised() -> None:
    @document_filter
    def hostile(document: Document) -> bool:
        raise ValueError("x\n\x1b[31my" + "z" * 1000)

    with pytest.raises(PilekitError, match=r"raised ValueError: x\\x0a\\x1b\[31myz+…$") as caught:
        list(hostile(iter([batch(["x"], shard="a\n\x1b.jsonl")])))
    assert len(str(caught.value)) < 400
    assert not {"\n", "\x1b"} & set(str(caught.value))


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_a_filter_must_return_a_bool(wrong: Any) -> None:
    with pytest.raises(PilekitError, match=f"returned {type(wrong).__name__}; it must return bool"):
        list(DocumentFilter(lambda document: wrong)(iter([batch(["x"])])))


@pytest.mark.parametrize("wrong", [None, b"x", 3])
def test_a_map_must_return_a_str(wrong: Any) -> None:
    with pytest.raises(PilekitError, match=f"returned {type(wrong).__name__}; it must return str"):
        list(DocumentMap(lambda document: wrong)(iter([batch(["x"])])))


def test_a_map_that_makes_a_lone_surrogate_is_named() -> None:
    def broken(document: Document) -> str:
        return "\ud800" if document.number == 1 else document.text

    with pytest.raises(PilekitError, match=r"document 1: the function .*broken returned a lone surrogate"):
        list(DocumentMap(broken)(iter([batch(["a", "b", "c"])])))


def test_interrupting_is_no_failure_of_the_function() -> None:
    def interrupted(document: Document) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(DocumentFilter(interrupted)(iter([batch(["a"])])))


def test_decorated_functions_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(even)) is even
    assert pickle.loads(pickle.dumps(DocumentFilter(lambda_free))) == DocumentFilter(lambda_free)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(document_map(lambda document: document.text))
