"""Ctrl-C and SIGTERM set a flag first; afterwards the old handlers are back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pilekit.cli.main import _interrupt
from pilekit.train.launch.interrupt import (
    ended_by_sigterm,
    first_interrupt,
    held_signals,
    interrupted_by,
    unhandled_signals,
)

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_are_restored() -> Iterator[None]:
    before = [signal.getsignal(number) for number in BOTH]
    yield
    assert [signal.getsignal(number) for number in BOTH] == before


def send(number: signal.Signals) -> None:
    """To this process, which handles it before the next line."""
    os.kill(os.getpid(), number)


def test_the_first_signal_is_a_flag_and_only_ctrl_c_stops_at_once() -> None:
    for number in BOTH:
        with first_interrupt() as asked:
            assert not asked()
            send(number)
            assert asked()
            send(signal.SIGTERM)
            assert interrupted_by() is signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
            assert asked()
        with first_interrupt() as asked:
            assert not asked()


def test_a_third_ctrl_c_does_not_interrupt_the_cleaning_up() -> None:
    before = signal.signal(signal.SIGINT, _interrupt)  # as the command line does
    cleaned = []
    try:
        with pytest.raises(KeyboardInterrupt), first_interrupt():
            send(signal.SIGINT)
            try:
                send(signal.SIGINT)
            finally:
                send(signal.SIGTERM)
                send(signal.SIGINT)
                cleaned.append(True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned == [True]


def test_a_closed_terminal_is_a_flag_too_but_not_under_nohup() -> None:
    before = signal.getsignal(signal.SIGHUP)
    for outside, heard in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        try:
            signal.signal(signal.SIGHUP, outside)
            with first_interrupt() as asked:
                send(signal.SIGHUP)
                assert asked() == heard
            assert signal.getsignal(signal.SIGHUP) is outside
        finally:
            signal.signal(signal.SIGHUP, before)


def test_signals_that_interrupt_their_own_handler_do_not_hang() -> None:
    storm = "import os, time\nfor _ in range(1500): os.kill(os.getppid(), 15); time.sleep(0.00001)"
    for _ in range(2):
        with first_interrupt() as asked:
            subprocess.run([sys.executable, "-c", storm], check=True, timeout=60)
            assert asked()


def test_outside_the_loop_sigterm_closes_what_is_open_and_ends_with_0() -> None:
    closed = []
    with pytest.raises(SystemExit) as ended, ended_by_sigterm():
        with first_interrupt() as asked:  # the loop's flag takes precedence
            send(signal.SIGTERM)
            assert asked()
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGTERM)  # while it closes
            closed.append(True)
    assert ended.value.code == 0
    assert closed == [True]


def test_a_signal_during_imports_is_not_lost() -> None:
    for number, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        reached = []
        with ended_by_sigterm():
            with pytest.raises(raised):
                with held_signals():
                    with suppress(BaseException):  # as an imported module may
                        send(number)
                    reached.append(True)
                reached.append(False)
            with held_signals():
                pass  # nothing is left of the first block
        assert reached == [True]
    with pytest.raises(KeyboardInterrupt), held_signals():
        send(signal.SIGINT)
        reached.append(True)
        send(signal.SIGINT)  # the second takes effect at once
        reached.append(False)
    assert reached == [True, True]


def test_a_ctrl_c_that_is_ignored_stays_ignored() -> None:
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
