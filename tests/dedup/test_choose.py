"""Near-duplicates and copies together: against a dictionary, document by document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.bits import no_bits, set_bits, write_bits
from pilekit.dedup.match.exact import ExactCopies
from pilekit.dedup.match.rows import Table, write_rows
from pilekit.dedup.output.merge_removals import EXACT, NEAR, Decisions, choose
from tests.dedup.listed import OWN, ranks_of

Edges = dict[tuple[int, int], float]
"""(rank of a removed document, rank of its partner) -> similarity."""
Removed = dict[int, tuple[int, float, int]]
"""Removed id -> (kept id, similarity, reason)."""


def reference(edges: Edges, copies: dict[int, int]) -> Removed:
    """`copies`: rank of a copy -> rank of the document that stands for its text."""
    removed = {document: (partner, similarity, NEAR) for (document, partner), similarity in edges.items()}
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
    edges: Edges = {}
    kept: list[int] = []
    for rank in sorted(rank for rank in ranks if rank not in of_text):
        if rank >= OWN and kept and data.draw(st.booleans()):
            edges[rank, data.draw(st.sampled_from(kept))] = data.draw(st.sampled_from([0.8, 0.8000000000000002, 1.0]))
        else:
            kept.append(rank)
    folder = tmp_path_factory.mktemp("choose")
    result = decided(folder, count, edges, of_text, at_a_time=data.draw(st.integers(1, 20)))
    assert result == reference(edges, of_text)


A, B, C, D = ranks_of([40, 30, 20, 10])


def test_a_copy_goes_with_the_document_that_stands_for_its_text(tmp_path: Path) -> None:
    kept, removed, copy_of_kept, copy_of_removed = ranks_of([40, 30, 40, 30])
    copies = {copy_of_kept: kept, copy_of_removed: removed}
    assert decided(tmp_path, 4, {(removed, kept): 0.875}, copies) == {
        1: (0, 0.875, NEAR),
        2: (0, 1.0, EXACT),
        3: (0, 0.875, NEAR),
    }


def test_copies_by_the_million_stream(tmp_path: Path) -> None:
    count = 200_000
    ranks = ranks_of([5] * count)
    copies = {ranks[document]: ranks[document % 2] for document in range(2, count)}
    result = decided(tmp_path, count, {(ranks[1], ranks[0]): 0.9}, copies)
    assert result == {document: (0, 0.9, NEAR) if document % 2 else (0, 1.0, EXACT) for document in range(1, count)}


@pytest.mark.parametrize(
    ("edges", "match"),
    [
        ([[C, A], [B, A]], "not in ascending order"),
        ([[C, A], [C, B]], "not in ascending order"),
        ([[B, A], [C, B]], "on account of a removed one"),
    ],
)
@pytest.mark.parametrize("at_a_time", [1, 2])
def test_edges_that_cannot_be_are_refused(tmp_path: Path, edges: list[list[int]], match: str, at_a_time: int) -> None:
    table = np.array([[*edge, float_bits(0.9)] for edge in edges], dtype=np.uint64).T
    some = [table[:, begin : begin + at_a_time] for begin in range(0, 2, at_a_time)]
    with pytest.raises(ValueError, match=match):
        choose(some, copies_on_disk(tmp_path / "copies", 3, {}), tmp_path / "choose", 1 << 20)
    assert not (tmp_path / "choose" / "removals.rows").exists()
