"""What a batch carries for the record, beside the plain sums over its pieces; and batches that do not fit a record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError
from pilekit.stream.pack.window import BEGIN, LENGTH
from pilekit.stream.read.lane_documents import SKIPPED, SUBSET
from pilekit.stream.record import Record, batch_state, state_of

LANES, SUBSETS = 6, 4

PIECES = st.lists(
    st.tuples(st.integers(0, SUBSETS - 1), st.integers(0, 2), st.integers(1, 9), st.integers(0, 2)), max_size=12
)
"""Subset, BEGIN, LENGTH and SKIPPED of each piece."""


def table(pieces: list[tuple[int, int, int, int]]) -> np.ndarray:
    columns = np.full((len(pieces), 12), 99, np.int64)
    for row, values in enumerate(pieces):
        columns[row, [SUBSET, BEGIN, LENGTH, SKIPPED]] = values
    return columns


@given(PIECES, st.lists(st.integers(0, LANES - 1), unique=True), st.integers(3, 5), st.booleans())
def test_a_record_takes_in_the_places_and_the_sums_of_a_batch(
    pieces: list[tuple[int, int, int, int]], lanes: list[int], width: int, counts_tokens: bool
) -> None:
    places = np.arange(len(lanes) * width).reshape(-1, width)
    state = batch_state(0, np.array(lanes, np.int64), places, 7, table(pieces), counts_tokens)
    record = Record(np.full((LANES, width), -1), 0, np.full((SUBSETS, 2), 10), rows=1, skipped=1)
    record.add(state)

    sums = [[10, 10] for _ in range(SUBSETS)]
    for subset, begin, length, _ in pieces:
        sums[subset][0] += begin == 0
        sums[subset][1] += length * counts_tokens
    assert record.subsets.tolist() == sums
    assert record.skipped == 1 + sum(skipped for _, begin, _, skipped in pieces if begin == 0)
    assert (record.batch, record.rows) == (1, 8)
    at = {lane: place.tolist() for lane, place in zip(lanes, places, strict=True)}
    assert record.places.tolist() == [at.get(lane, [-1] * width) for lane in range(LANES)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": [0, LANES]},
        {"lanes": [-1, 2]},
        {"width": 4},
        {"pieces": [(SUBSETS, 0, 5, 0)]},
        {"cut": 1},
        {"cut": 5},
    ],
)
def test_a_batch_of_another_stream_is_refused_and_changes_nothing(wrong: dict[str, list[int] | int]) -> None:
    """Also one that was cut off on its way."""
    arguments = {"lanes": [1, 2], "width": 3, "pieces": [(1, 0, 5, 0)], "cut": 0} | wrong
    lanes = np.array(arguments["lanes"], np.int64)
    places = np.zeros((len(lanes), arguments["width"]), np.int64)
    state = batch_state(0, lanes, places, 7, table(arguments["pieces"]), True)
    state = state[: len(state) - arguments["cut"]]
    record = Record(np.ones((LANES, 3), np.int64), 0, np.ones((SUBSETS, 2), np.int64))
    with pytest.raises(PilekitError, match="a batch of another stream"):
        record.add(state_of({"stream_state": state}))
    assert (record.places == 1).all()
    assert (record.subsets == 1).all()
    assert (record.batch, record.rows) == (0, 0)
