"""Shingle sets of many texts at once, and of a long one in parts: the sets that each text has by itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.compare import shingle_sets as module
from pilekit.dedup.compare.shingle_sets import Sets, large_sets, shingle_sets
from pilekit.dedup.sketch.shingles import shingle_set
from tests.shards.making import texts

repetitive = st.lists(st.sampled_from(["a", "b", "c", "dd"]), max_size=300).map(" ".join)


def joined(documents: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [text.encode() for text in documents]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets


def single(text: str, ngram: int) -> list[int]:
    return shingle_set(np.frombuffer(text.encode(), dtype=np.uint8), ngram).tolist()


def split(sets: Sets) -> list[list[int]]:
    values, sizes = sets
    assert len(values) == sizes.sum()
    return [part.tolist() for part in np.split(values, np.cumsum(sizes)[:-1])]


@given(st.lists(st.one_of(texts, repetitive), min_size=1, max_size=8), st.integers(1, 6))
def test_each_text_has_its_own_set(documents: list[str], ngram: int) -> None:
    assert split(shingle_sets(*joined(documents), ngram)) == [single(text, ngram) for text in documents]


@pytest.mark.parametrize("held", [1, 50, 10**6])
@given(documents=st.lists(st.one_of(texts, repetitive), min_size=1, max_size=4), ngram=st.integers(1, 6))
def test_in_parts_they_are_the_same(held: int, documents: list[str], ngram: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANGE_VALUES", held)
        parts = list(large_sets(*joined(documents), ngram))
    assert split(Sets(*(np.concatenate(column) for column in zip(*parts, strict=True)))) == [
        single(text, ngram) for text in documents
    ]


def test_a_long_text_takes_no_more_than_one_range_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGE_VALUES", 10_000)
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1000, 200_000).astype(str).tolist()
    for text in (" ".join(words), " ".join(words[:10] * 20_000), "a " * 200_000):
        parts = list(large_sets(*joined([text]), 5))
        assert split(Sets(*(np.concatenate(column) for column in zip(*parts, strict=True)))) == [single(text, 5)]
        assert max(len(part.values if part.values.base is None else part.values.base) for part in parts) <= 10_000
