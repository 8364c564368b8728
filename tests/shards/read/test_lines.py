"""Lines equal those of `split`, wherever pieces are cut; running ahead keeps items, their order and their errors."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.shards.read.lines import LineCount, whole_lines
from pilekit.shards.read.prefetch import SWITCH_INTERVAL_SECONDS, run_ahead
from pilekit.shards.read.read_errors import LineTooLong


@given(
    st.lists(st.text("a\n \r\x0b\x1c", max_size=12).map(str.encode), max_size=12),
    st.integers(1, 8) | st.just(1 << 20),
    st.integers(1, 3) | st.just(1 << 15),
)
def test_lines_are_those_of_split_up_to_the_first_that_is_too_long(
    pieces: list[bytes], limit: int, at_a_time: int
) -> None:
    """Blank lines are left out and counted; no list is longer than it may be."""
    expected = b"".join(pieces).split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    too_long = next((number for number, line in enumerate(expected) if len(line) > limit), None)
    found: list[tuple[int, bytes]] = []
    end = 0
    count = LineCount()
    try:
        for block in whole_lines(iter(pieces), limit, count):
            for part in block.parts(at_a_time):
                assert len(part.lines) <= at_a_time + 1  # and the line that crossed a border
                found += zip(part.numbers.tolist(), map(bytes, part.lines), strict=True)
                end = part.end
                assert end == count.lines
    except LineTooLong as error:
        assert end + error.lines_before == too_long
        expected = expected[:end]
    else:
        assert too_long is None
    assert end == len(expected)
    assert found == [(number, line) for number, line in enumerate(expected) if line.strip()]


def test_an_endless_line_is_refused() -> None:
    with pytest.raises(LineTooLong):
        list(whole_lines(itertools.repeat(bytes(1 << 20)), 8 << 20, LineCount()))


@pytest.fixture
def earlier() -> set[threading.Thread]:
    """The threads that ran before this test."""
    return set(threading.enumerate())


def threads(earlier: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pilekit-run-ahead" and thread not in earlier]


def test_items_come_in_order_before_the_error_and_the_switch_interval_is_reset(
    earlier: set[threading.Thread],
) -> None:
    def failing() -> Iterator[int]:
        yield from range(1000)
        raise ValueError("thousand")

    usual = sys.getswitchinterval()
    items = run_ahead(failing())
    assert next(items) == 0
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
    assert list(itertools.islice(items, 999)) == list(range(1, 1000))
    with pytest.raises(ValueError, match="thousand"):
        next(items)
    assert sys.getswitchinterval() == pytest.approx(usual)
    assert not threads(earlier)


def test_it_runs_no_further_ahead_than_asked_and_closing_stops_the_thread(earlier: set[threading.Thread]) -> None:
    made: list[int] = []
    proceed = threading.Event()

    def endless() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            if number == 5:
                proceed.set()
            yield number

    items = run_ahead(endless(), depth=4)
    assert next(items) == 0
    assert proceed.wait(60)
    # One item was yielded, four are in the queue, the thread holds one.
    assert len(made) <= 7
    assert threads(earlier)
    items.close()
    assert not threads(earlier)
