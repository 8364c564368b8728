"""Exact copies, against a dictionary of texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match.exact import find_exact
from tests.dedup.given import ListedPopulation, ranks_of_lengths


def check(folder: Path, population: ListedPopulation, ranks: list[int], texts: list[tuple[int, int]]) -> int:
    """Of each text, the first rank stands for all others; returns the copies. In any memory."""
    first: dict[tuple[int, int], int] = {}
    present = {rank for some, _ in population.chunks([]) for rank in some.tolist()}
    expected = [
        (keeper, rank)
        for rank in sorted(present)
        if (keeper := first.setdefault(texts[rank & 0xFFFFFFFF], rank)) != rank
    ]
    for memory in (1, 1 << 16, 1 << 24):
        tables = find_exact(population, folder, memory)  # type: ignore[arg-type]
        assert sorted(tuple(pair) for table in tables for pair in table.T.tolist()) == sorted(expected)
    return len(expected)


@given(data=st.data())
def test_every_copy_names_the_first_of_its_text(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60), label="documents")
    # Two texts are equal only if both halves of their hashes are.
    half = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])
    texts = data.draw(st.lists(st.tuples(half, half), min_size=count, max_size=count))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    ranks = ranks_of_lengths(lengths, against=data.draw(st.integers(0, count)))
    absent = data.draw(st.sets(st.integers(1, count)))
    columns = {"hash_high": [high for high, _ in texts], "hash_low": [low for _, low in texts]}
    population = ListedPopulation(ranks, columns, absent=absent, at_a_time=data.draw(st.integers(1, 20)))
    check(tmp_path_factory.mktemp("exact"), population, ranks, texts)


def test_a_text_that_occurs_more_often_than_memory_holds(tmp_path: Path) -> None:
    """5,000 empty documents and 5,000 others; the smallest sort holds 1,024 rows."""
    texts = [0 if document % 2 else document for document in range(10_000)]
    ranks = ranks_of_lengths([document % 5 for document in range(10_000)])
    population = ListedPopulation(ranks, {"hash_high": texts, "hash_low": texts})
    assert check(tmp_path, population, ranks, [(text, text) for text in texts]) == 5000
