"""Running ahead keeps the items, their order and their errors."""

from __future__ import annotations

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


def test_items_come_in_order_and_the_switch_interval_is_restored(earlier: set[threading.Thread]) -> None:
    usual = sys.getswitchinterval()
    items = run_ahead(iter(range(1000)))
    assert next(items) == 0
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
    assert list(items) == list(range(1, 1000))
    assert sys.getswitchinterval() == pytest.approx(usual)
    assert not threads(earlier)


def test_an_error_comes_after_the_items_before_it(earlier: set[threading.Thread]) -> None:
    def failing() -> Iterator[int]:
        yield from range(50)
        raise ValueError("fifty")

    got = []
    with pytest.raises(ValueError, match="fifty"):
        for item in run_ahead(failing()):
            got.append(item)  # a comprehension would lose the items before the error
    assert got == list(range(50))
    assert not threads(earlier)


def test_closing_early_stops_the_thread(earlier: set[threading.Thread]) -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)

    items = run_ahead(endless())
    assert [next(items) for _ in range(3)] == [1, 2, 3]
    assert threads(earlier)
    items.close()
    assert not threads(earlier)


def test_it_does_not_run_further_ahead_than_asked() -> None:
    made: list[int] = []
    proceed = threading.Event()

    def counted() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 5:
                proceed.set()
            yield number

    items = run_ahead(counted(), depth=4)
    assert next(items) == 0
    assert proceed.wait(60)
    # One item was yielded, four are in the queue, the thread holds one.
    assert len(made) <= 7
    items.close()
