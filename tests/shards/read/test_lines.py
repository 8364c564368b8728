"""Lines equal those of `split`, wherever the pieces are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.shards.read.lines import LineTooLong, whole_lines


@given(st.lists(st.text("a\n", max_size=12).map(str.encode), max_size=12))
def test_lines_are_those_of_split_wherever_the_pieces_are_cut(pieces: list[bytes]) -> None:
    expected = b"".join(pieces).split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    found = [bytes(line) for block in whole_lines(iter(pieces), 1 << 20) for line in block.lines()]
    assert found == expected


@given(st.lists(st.text("a\n", max_size=12).map(str.encode), max_size=12), st.integers(1, 8))
def test_the_first_line_that_is_too_long_is_found(pieces: list[bytes], limit: int) -> None:
    lengths = [len(line) for line in b"".join(pieces).split(b"\n")]
    too_long = [number for number, length in enumerate(lengths) if length > limit]
    whole = 0
    blocks = whole_lines(iter(pieces), limit)
    if too_long:
        with pytest.raises(LineTooLong) as raised:
            for block in blocks:
                whole += len(block.lines())
        assert whole + raised.value.lines_before == too_long[0]
    else:
        list(blocks)


def test_an_endless_line_is_refused() -> None:
    def endless():  # type: ignore[no-untyped-def]
        while True:
            yield bytes(1 << 20)

    with pytest.raises(LineTooLong):
        list(whole_lines(endless(), 8 << 20))
