"""Who is removed, and why: against the definition, read off a dictionary document by document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.bits import no_bits, set_bits, write_bits
from pilekit.dedup.choose import EXACT, NEAR, Decisions, choose
from pilekit.dedup.exact import ExactCopies
from pilekit.dedup.rows import Table, write_rows
from tests.dedup.listed import OWN, ranks_of

Edges = dict[tuple[int, int], float]
"""(later rank, earlier rank) -> similarity."""
Removed = dict[int, tuple[int, float, int]]
"""Removed id -> (kept id, similarity, reason)."""


def reference(edges: Edges, copies: dict[int, int]) -> Removed:
    """`copies`: rank of a copy -> rank of the document that stands for its text."""
    removed: dict[int, tuple[int, float, int]] = {}
    for document in sorted({later for later, _ in edges}):
        kept = [
            (-similarity, earlier)
            for (later, earlier), similarity in edges.items()
            if later == document and earlier not in removed
        ]
        if kept and document >= OWN:
            removed[document] = (min(kept)[1], -min(kept)[0], NEAR)
    near = dict(removed)
    for copy, keeper in copies.items():
        removed[copy] = near.get(keeper, (keeper, 1.0, EXACT))
    return {rank & 0xFFFFFFFF: (kept & 0xFFFFFFFF, *why) for rank, (kept, *why) in removed.items()}  # type: ignore[misc]


def tables(edges: Edges, at_a_time: int) -> Iterator[Table]:
    rows = sorted((later, earlier, float_bits(similarity)) for (later, earlier), similarity in edges.items())
    table = np.array(rows, dtype=np.uint64).reshape(-1, 3).T
    for begin in range(0, len(rows), at_a_time):
        yield np.ascontiguousarray(table[:, begin : begin + at_a_time])


def float_bits(value: float) -> int:
    return int(np.float64(value).view(np.uint64))


def copies_on_disk(folder: Path, documents: int, copies: dict[int, int]) -> ExactCopies:
    folder.mkdir(parents=True)
    found = ExactCopies(folder, documents)
    bits = no_bits(documents)
    set_bits(bits, np.array([copy & 0xFFFFFFFF for copy in copies], dtype=np.uint32))
    write_bits(folder / "copies.bits", bits)
    rows = sorted((keeper, copy) for copy, keeper in copies.items())
    write_rows(found.pairs.path, 2, [np.array(rows, dtype=np.uint64).reshape(-1, 2).T])
    return found


def found(decisions: Decisions) -> Removed:
    rows = [row for table in decisions.removals.chunks() for row in table.T.tolist()]
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    bits = np.unpackbits(decisions.bits(), count=decisions.documents, bitorder="little")
    assert np.flatnonzero(bits).tolist() == [row[0] for row in rows]
    return {row[0]: (row[1], float(np.uint64(row[2]).view(np.float64)), row[3]) for row in rows}


def decided(folder: Path, documents: int, edges: Edges, copies: dict[int, int], at_a_time: int = 5) -> Removed:
    decisions = choose(
        tables(edges, at_a_time), copies_on_disk(folder / "copies", documents, copies), folder / "choose", 1 << 20
    )
    return found(decisions)


@given(data=st.data())
def test_random_edges_and_copies(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 30), label="documents")
    ranks = ranks_of(
        data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), against=data.draw(st.integers(0, count))
    )
    of_text: dict[int, int] = {}
    for copy, keeper in data.draw(st.lists(st.tuples(st.sampled_from(ranks), st.sampled_from(ranks)))):
        if copy > keeper and keeper not in of_text and copy >= OWN and copy not in of_text.values():
            of_text[copy] = keeper
    alone = [rank for rank in ranks if rank not in of_text]
    pair = st.tuples(st.sampled_from(alone), st.sampled_from(alone))
    similarities = st.sampled_from([0.8, 0.8000000000000002, 0.9, 1.0])  # often equal
    drawn = data.draw(st.dictionaries(pair, similarities, max_size=120))
    edges = {(later, earlier): similarity for (later, earlier), similarity in drawn.items() if later > earlier}
    folder = tmp_path_factory.mktemp("choose")
    result = decided(folder, count, edges, of_text, at_a_time=data.draw(st.integers(1, 20)))
    assert result == reference(edges, of_text)
    # What was promised, whatever the reference says.
    for document, (kept, similarity, reason) in result.items():
        assert kept not in result
        assert ranks[document] >= OWN
        assert ranks[kept] < ranks[document]
        stands = of_text.get(ranks[document], ranks[document])
        if reason == EXACT:
            assert (stands, similarity) == (ranks[kept], 1.0)
        else:
            assert edges[stands, ranks[kept]] == similarity
    kept_and_known = {later for later, earlier in edges if later >= OWN and earlier & 0xFFFFFFFF not in result}
    assert kept_and_known <= {ranks[document] for document in result}


A, B, C, D = ranks_of([40, 30, 20, 10])


def test_no_chain_removes_what_resembles_nothing_kept(tmp_path: Path) -> None:
    assert decided(tmp_path, 3, {(B, A): 0.9, (C, B): 0.9}, {}) == {1: (0, 0.9, NEAR)}
    alternating = {(C, B): 0.9, (B, A): 0.9, (D, C): 0.8}
    assert decided(tmp_path / "four", 4, alternating, {}) == {1: (0, 0.9, NEAR), 3: (2, 0.8, NEAR)}


def test_the_most_similar_kept_one_is_named_and_of_equals_the_first(tmp_path: Path) -> None:
    edges = {(D, A): 0.8, (D, B): 0.85, (D, C): 0.99, (C, A): 0.95}
    assert decided(tmp_path, 4, edges, {}) == {2: (0, 0.95, NEAR), 3: (1, 0.85, NEAR)}
    assert decided(tmp_path / "tie", 4, {(D, B): 0.9, (D, A): 0.9, (D, C): 0.9}, {})[3] == (0, 0.9, NEAR)


def test_a_copy_goes_with_the_document_that_stands_for_its_text(tmp_path: Path) -> None:
    kept, removed, copy_of_kept, copy_of_removed = ranks_of([40, 30, 40, 30])
    copies = {copy_of_kept: kept, copy_of_removed: removed}
    assert decided(tmp_path, 4, {(removed, kept): 0.875}, copies) == {
        1: (0, 0.875, NEAR),
        2: (0, 1.0, EXACT),
        3: (0, 0.875, NEAR),
    }


def test_nothing_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    old, older, new = ranks_of([10, 10, 99], against=2)
    assert decided(tmp_path, 3, {(older, old): 1.0, (new, old): 0.8, (new, older): 0.8}, {}) == {2: (0, 0.8, NEAR)}


def test_copies_by_the_million_stream(tmp_path: Path) -> None:
    count = 200_000
    ranks = ranks_of([5] * count)
    copies = {ranks[document]: ranks[document % 2] for document in range(2, count)}
    result = decided(tmp_path, count, {(ranks[1], ranks[0]): 0.9}, copies)
    assert result == {document: (0, 0.9, NEAR) if document % 2 else (0, 1.0, EXACT) for document in range(1, count)}


def test_edges_out_of_order_are_refused(tmp_path: Path) -> None:
    unsorted = [np.array([[C, A, float_bits(0.9)], [B, A, float_bits(0.9)]], dtype=np.uint64).T]
    with pytest.raises(ValueError, match="not in ascending order"):
        choose(unsorted, copies_on_disk(tmp_path / "copies", 3, {}), tmp_path / "choose", 1 << 20)
    assert not (tmp_path / "choose" / "removals.rows").exists()
