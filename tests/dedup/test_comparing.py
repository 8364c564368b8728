"""The kernels by themselves: how many shingles are needed, how many are shared, who is decided beside whom."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.compare.jaccard_kernels import groups, needed, possible, shared_if_enough

values = st.lists(st.integers(0, 99) | st.integers(0, 2**64 - 1), unique=True, max_size=100)


@pytest.mark.parametrize("threshold", [0.001, 0.1, 1 / 3, 0.5, 0.7, 0.8, 0.8000000000000002, 0.9, 0.95, 0.999, 1.0])
def test_as_many_are_needed_as_reach_the_threshold_by_the_definition(threshold: float) -> None:
    for one, other in product(range(1, 60), repeat=2):
        reaching = [shared for shared in range(min(one, other) + 1) if shared / (one + other - shared) >= threshold]
        found = needed(one, other, threshold)
        assert found == reaching[0] if reaching else found > min(one, other)
        assert possible(np.array([one]), np.array([other]), threshold).tolist() == [bool(reaching)]


@given(st.integers(1, 2**29), st.floats(0.9, 1), st.floats(0.01, 1))
def test_as_many_are_needed_of_large_sets(one: int, ratio: float, threshold: float) -> None:
    other = max(1, int(one * ratio))
    found = needed(one, other, threshold)
    if found <= min(one, other):
        assert found / (one + other - found) >= threshold
    if found > 0:
        least = min(found, min(one, other) + 1) - 1
        assert least / (one + other - least) < threshold


@given(values, values, st.integers(0, 3))
def test_what_is_shared_is_counted_unless_it_cannot_be_enough(one: list[int], other: list[int], before: int) -> None:
    shared = len(set(one) & set(other))
    both = np.array([7] * before + sorted(one) + [5] + sorted(other), dtype=np.uint64)
    places = (before, before + len(one), before + len(one) + 1, before + len(one) + 1 + len(other))
    for enough in range(shared + 1):
        assert shared_if_enough(both, *places, enough) == shared
    for enough in (shared + 1, shared + 2, 1000):
        assert shared_if_enough(both, *places, enough) == -1


@given(st.integers(1, 30), st.data())
def test_documents_that_meet_are_in_one_group_and_no_others(documents: int, data: st.DataObject) -> None:
    document = st.integers(0, documents - 1)
    pairs = data.draw(st.lists(st.tuples(document, document | st.just(-1)), max_size=30))
    members = sorted(data.draw(st.sets(st.tuples(document, st.integers(0, 4)), max_size=20)))
    meet = [{later, earlier} for later, earlier in pairs if earlier >= 0]
    meet += [{place for place, of in members if of == run} for run in range(5)]
    expected = [{place} for place in range(documents)]
    for together in meet:
        joined = [group for group in expected if group & together]
        expected = [group for group in expected if not group & together]
        if joined:
            expected.append(set().union(*joined))
    columns = [np.array(column, dtype=np.int32) for column in (*_columns(pairs), *_columns(members))]
    found = groups(*columns, documents, 5).tolist()
    assert {frozenset(np.flatnonzero(np.array(found) == group).tolist()) for group in found} == set(
        map(frozenset, expected)
    )


def _columns(rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [row[0] for row in rows], [row[1] for row in rows]
