"""Ctrl-C and SIGTERM: a flag at first, and what was there before afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pilekit.train.launch.interrupt import (
    ended_by_sigterm,
    first_interrupt,
    held_signals,
    interrupted_by,
    unhandled_signals,
)


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    yield
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def send(number: signal.Signals) -> None:
    """To this process; it is handled before the next line."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_a_flag(number: signal.Signals) -> None:
    with first_interrupt() as asked:
        assert not asked()
        send(number)
        assert asked()
        assert asked()
    assert interrupted_by() is number
    with first_interrupt() as asked:
        assert not asked()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_another_ctrl_c_stops_at_once(number: signal.Signals) -> None:
    with first_interrupt() as asked:
        send(number)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert asked()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_another_sigterm_does_not(number: signal.Signals) -> None:
    with first_interrupt() as asked:
        send(number)
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert asked()


def test_outside_the_loop_sigterm_closes_what_is_open_and_ends_with_0() -> None:
    closed = []
    with pytest.raises(SystemExit) as ended, ended_by_sigterm():
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGTERM)  # while it closes
            closed.append(True)
    assert ended.value.code == 0
    assert closed == [True]


def test_the_loop_s_own_flag_goes_before() -> None:
    with ended_by_sigterm():
        with first_interrupt() as asked:
            send(signal.SIGTERM)
            assert asked()
        with pytest.raises(SystemExit):
            send(signal.SIGTERM)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_what_comes_amid_imports_is_not_lost_in_them(number: signal.Signals, raised: type[BaseException]) -> None:
    def module_that_catches_everything() -> None:
        with suppress(BaseException):
            send(number)

    reached = []
    with ended_by_sigterm():
        with pytest.raises(raised):
            with held_signals():
                module_that_catches_everything()
                reached.append(True)
            reached.append(False)
        with held_signals():
            pass  # of what was held before, nothing is left
    assert reached == [True]


def test_a_second_ctrl_c_amid_imports_counts_at_once() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), held_signals():
        send(signal.SIGINT)
        reached.append(True)
        send(signal.SIGINT)
        reached.append(False)
    assert reached == [True]


def test_a_ctrl_c_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_signals():
            send(signal.SIGINT)
        with unhandled_signals():
            send(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_leaves_signals_alone() -> None:
    found = []

    def look() -> None:
        before = signal.getsignal(signal.SIGINT)
        with ended_by_sigterm(), first_interrupt() as asked:
            found.append(not asked() and signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [True]
