"""Exact copies, against a dictionary of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.match.exact import ExactCopies, find_exact
from tests.dedup.listed import OWN, ListedPopulation, ranks_of


def reference(ranks: list[int], texts: list[Any], absent: frozenset[int]) -> tuple[list[tuple[int, int]], set[int]]:
    """((keeper, copy) of all copies, documents that take no further part)."""
    pairs, no_part = [], set()
    first: dict[Any, int] = {}
    for rank in sorted(ranks):
        document = rank & 0xFFFFFFFF
        if document in absent:
            continue
        keeper = first.setdefault(texts[document], rank)
        if keeper != rank:
            no_part.add(document)
            if rank >= OWN:
                pairs.append((keeper, rank))
    return sorted(pairs), no_part


def found(copies: ExactCopies) -> tuple[list[tuple[int, int]], set[int]]:
    pairs = [(keeper, copy) for table in copies.pairs.chunks() for keeper, copy in table.T.tolist()]
    bits = np.unpackbits(copies.bits(), count=copies.documents, bitorder="little")
    return pairs, set(np.flatnonzero(bits).tolist())


@given(data=st.data(), memory=st.sampled_from([1, 1 << 16, 1 << 24]))
def test_every_copy_names_the_first_of_its_text(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, memory: int
) -> None:
    count = data.draw(st.integers(0, 60), label="documents")
    # Hashes of which one half or the other is often equal: two texts are equal if both are.
    half = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])
    texts = data.draw(st.lists(st.tuples(half, half), min_size=count, max_size=count))
    ranks = ranks_of(
        data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), against=data.draw(st.integers(0, count))
    )
    absent = frozenset(data.draw(st.lists(st.integers(0, max(0, count - 1)))))
    columns = {"hash_high": [high for high, _ in texts], "hash_low": [low for _, low in texts]}
    population = ListedPopulation(ranks, columns, absent=absent, at_a_time=data.draw(st.integers(1, 20)))
    copies = find_exact(population, tmp_path_factory.mktemp("exact"), memory)
    assert found(copies) == reference(ranks, texts, absent)


@pytest.mark.parametrize("memory", [1, 1 << 24])
def test_a_text_that_occurs_more_often_than_memory_holds(tmp_path: Path, memory: int) -> None:
    """5,000 empty documents and 5,000 others, and a sort that holds 1,024."""
    texts = [0 if document % 2 else document for document in range(10_000)]
    ranks = ranks_of([document % 5 for document in range(10_000)])
    copies = find_exact(
        ListedPopulation(ranks, {"hash_high": texts, "hash_low": texts}, at_a_time=1000), tmp_path, memory
    )
    assert found(copies) == reference(ranks, texts, frozenset())
    assert copies.pairs.count == 5000


def test_what_is_complete_is_not_done_again(tmp_path: Path) -> None:
    columns = {"hash_high": [1, 1], "hash_low": [2, 2]}
    first = find_exact(ListedPopulation(ranks_of([1, 1]), columns), tmp_path, 1 << 20)
    again = find_exact(ListedPopulation(ranks_of([1, 1]), {}), tmp_path, 1 << 20)  # has no columns to read
    assert found(again) == found(first) == ([(ranks_of([1, 1])[0], ranks_of([1, 1])[1])], {1})
