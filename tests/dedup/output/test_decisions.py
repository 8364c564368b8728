"""Near-duplicates and copies together, against a dictionary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.output.decisions import EXACT, NEAR, Decisions
from tests.dedup.listed import OWN, ranks_of

Edges = dict[tuple[int, int], float]
"""(rank of a removed document, rank of its partner) -> similarity."""
Removed = dict[int, tuple[int, float, int]]
"""Removed id -> (kept id, similarity, reason)."""


def reference(edges: Edges, copies: dict[int, int]) -> Removed:
    """`copies`: rank of a copy -> rank of the document that stands for its text."""
    near = {document: (partner, similarity, NEAR) for (document, partner), similarity in edges.items()}
    removed = near | {copy: near.get(keeper, (keeper, 1.0, EXACT)) for copy, keeper in copies.items() if copy >= OWN}
    return {rank & 0xFFFFFFFF: (kept & 0xFFFFFFFF, *why) for rank, (kept, *why) in removed.items()}  # type: ignore[misc]


def decided(folder: Path, documents: int, edges: Edges, copies: dict[int, int], size: int = 5) -> Removed:
    decisions = Decisions(documents, folder)
    decisions.add_copies(np.array([*copies.values(), *copies], dtype=np.uint64).reshape(2, -1))
    for (document, partner), similarity in edges.items():
        bits = int(np.float64(similarity).view(np.uint64))
        decisions.add_near(np.array([[document], [partner], [bits]], dtype=np.uint64))
    found: Removed = {}
    for some in decisions.removals(size):
        assert len(some.removed) <= size
        rows = zip(*(column.tolist() for column in some), strict=True)
        found |= {document: (kept, similarity, reason) for document, kept, similarity, reason in rows}
    assert list(found) == sorted(found) == np.flatnonzero(decisions.removed(0, documents)).tolist()
    return found


@given(data=st.data())
def test_random_edges_and_copies(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 30), label="documents")
    ranks = ranks_of(
        data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), against=data.draw(st.integers(0, count))
    )
    of_text: dict[int, int] = {}
    for copy, keeper in data.draw(st.lists(st.tuples(st.sampled_from(ranks), st.sampled_from(ranks)))):
        if copy > keeper and keeper not in of_text and copy not in of_text.values():
            of_text[copy] = keeper
    edges: Edges = {}
    kept: list[int] = []
    for rank in sorted(rank for rank in ranks if rank not in of_text):
        if rank >= OWN and kept and data.draw(st.booleans()):
            edges[rank, data.draw(st.sampled_from(kept))] = data.draw(st.sampled_from([0.8, 0.8000000000000002, 1.0]))
        else:
            kept.append(rank)
    size = data.draw(st.integers(1, 20))
    found = decided(tmp_path_factory.mktemp("decisions"), count, edges, of_text, size)
    assert found == reference(edges, of_text)


def test_a_removal_for_the_sake_of_a_removed_document_is_refused(tmp_path: Path) -> None:
    first, second, third = ranks_of([3, 2, 1])
    with pytest.raises(ValueError, match="for the sake of a removed one"):
        decided(tmp_path, 3, {(second, first): 0.9, (third, second): 0.9}, {})
