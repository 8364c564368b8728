"""Lines equal those of `split`, wherever the pieces are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.shards.read.lines import LineTooLong, whole_lines


@given(st.lists(st.text("a\n", max_size=12).map(str.encode), max_size=12), st.integers(1, 8) | st.just(1 << 20))
def test_lines_are_those_of_split_up_to_the_first_that_is_too_long(pieces: list[bytes], limit: int) -> None:
    expected = b"".join(pieces).split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    too_long = next((number for number, line in enumerate(expected) if len(line) > limit), None)
    found: list[bytes] = []
    try:
        for block in whole_lines(iter(pieces), limit):
            found += map(bytes, block.lines())
    except LineTooLong as error:
        assert len(found) + error.lines_before == too_long
        assert found == expected[: len(found)]
    else:
        assert too_long is None
        assert found == expected


def test_an_endless_line_is_refused() -> None:
    with pytest.raises(LineTooLong):
        list(whole_lines(itertools.repeat(bytes(1 << 20)), 8 << 20))
