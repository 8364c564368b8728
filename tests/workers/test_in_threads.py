"""Results come in order, and nothing is read while a large item is processed."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pilekit.workers.in_threads import LARGE_BYTES, map_in_threads


@given(st.lists(st.sampled_from([0, 1, LARGE_BYTES + 1]), max_size=12), st.integers(0, 4), st.integers(1, 3))
def test_results_are_in_order_and_large_items_alone(sizes: list[int], threads: int, rounds: int) -> None:
    read = 0

    def items() -> Iterator[tuple[int, int]]:
        nonlocal read
        for place, size in enumerate(sizes, 1):
            read = place
            yield place, size

    def number(item: tuple[int, int]) -> int:
        return read if item[1] > LARGE_BYTES else item[0]

    results = map_in_threads(number, items(), threads, size_of=lambda item: item[1], rounds=rounds)
    assert list(results) == [((place, size), place) for place, size in enumerate(sizes, 1)]
