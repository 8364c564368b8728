"""Running ahead keeps the items, their order and their errors."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator

import pytest

from pilekit.shards.read.prefetch import SWITCH_INTERVAL_SECONDS, run_ahead


@pytest.fixture
def earlier() -> set[threading.Thread]:
    """The threads that ran before this test."""
    return set(threading.enumerate())


def threads(earlier: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pilekit-run-ahead" and thread not in earlier]


def test_items_come_in_order_before_the_error_and_the_switch_interval_is_restored(
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
