"""Exact copies, against a dictionary of texts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match.exact import find_exact
from tests.dedup.listed import ListedPopulation, ranks_of


def reference(ranks: list[int], texts: Sequence[Hashable], absent: frozenset[int]) -> list[tuple[int, int]]:
    """(document that stands for the text, copy) of all copies."""
    pairs = []
    first: dict[Hashable, int] = {}
    for rank in sorted(ranks):
        document = rank & 0xFFFFFFFF
        if document not in absent:
            keeper = first.setdefault(texts[document], rank)
            if keeper != rank:
                pairs.append((keeper, rank))
    return sorted(pairs)


def found(population: ListedPopulation, folder: Path, memory: int) -> list[tuple[int, int]]:
    tables = find_exact(population, folder, memory)  # type: ignore[arg-type]
    return sorted((keeper, copy) for table in tables for keeper, copy in table.T.tolist())


@given(data=st.data(), memory=st.sampled_from([1, 1 << 16, 1 << 24]))
def test_every_copy_names_the_first_of_its_text(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, memory: int
) -> None:
    count = data.draw(st.integers(0, 60), label="documents")
    # Two texts are equal only if both halves of their hashes are.
    half = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])
    texts = data.draw(st.lists(st.tuples(half, half), min_size=count, max_size=count))
    ranks = ranks_of(
        data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), against=data.draw(st.integers(0, count))
    )
    absent = frozenset(data.draw(st.lists(st.integers(0, max(0, count - 1)))))
    columns = {"hash_high": [high for high, _ in texts], "hash_low": [low for _, low in texts]}
    population = ListedPopulation(ranks, columns, absent=absent, at_a_time=data.draw(st.integers(1, 20)))
    assert found(population, tmp_path_factory.mktemp("exact"), memory) == reference(ranks, texts, absent)


def test_a_text_that_occurs_more_often_than_memory_holds(tmp_path: Path) -> None:
    """5,000 empty documents and 5,000 others, and a sort that holds 1,024 rows."""
    texts = [0 if document % 2 else document for document in range(10_000)]
    ranks = ranks_of([document % 5 for document in range(10_000)])
    for memory in (1, 1 << 24):
        population = ListedPopulation(ranks, {"hash_high": texts, "hash_low": texts}, at_a_time=1000)
        copies = found(population, tmp_path, memory)
        assert copies == reference(ranks, texts, frozenset())
        assert len(copies) == 5000
