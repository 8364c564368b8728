"""The kernels by themselves: how many shingles are needed, how many are shared."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.dedup.compare.jaccard_kernels import needed, shared_if_enough

values = st.lists(st.integers(0, 99) | st.integers(0, 2**64 - 1), unique=True, max_size=100)


@pytest.mark.parametrize("threshold", [0.001, 0.1, 1 / 3, 0.5, 0.7, 0.8, 0.8000000000000002, 0.9, 0.95, 0.999, 1.0])
def test_as_many_are_needed_as_reach_the_threshold_by_the_definition(threshold: float) -> None:
    for one, other in product(range(1, 60), repeat=2):
        reaching = [shared for shared in range(min(one, other) + 1) if shared / (one + other - shared) >= threshold]
        found = needed(one, other, threshold)
        assert found == reaching[0] if reaching else found > min(one, other)


@given(st.integers(1, 2**29), st.floats(0.9, 1), st.floats(0.01, 1))
def test_as_many_are_needed_of_large_sets(one: int, ratio: float, threshold: float) -> None:
    other = max(1, int(one * ratio))
    found = needed(one, other, threshold)
    if found <= min(one, other):
        assert found / (one + other - found) >= threshold
    if found > 0:
        least = min(found, min(one, other) + 1) - 1
        assert least / (one + other - least) < threshold


@given(values, values)
def test_what_is_shared_is_counted_unless_it_cannot_be_enough(one: list[int], other: list[int]) -> None:
    shared = len(set(one) & set(other))
    sets = [np.array(sorted(some), dtype=np.uint64) for some in (one, other)]
    for enough in range(shared + 1):
        assert shared_if_enough(*sets, enough) == shared
    for enough in (shared + 1, shared + 2, 1000):
        assert shared_if_enough(*sets, enough) == -1
