"""Ctrl-C, SIGTERM and SIGHUP ask the training loop to stop after its step. A second Ctrl-C stops at once.

A step that is cut off would be lost, and a rank that stops alone leaves the others waiting. So a signal only sets a
flag, which the ranks share between steps. Schedulers send SIGTERM, launchers pass it on, and a rank may get it twice.
Therefore only Ctrl-C, which a person repeats on purpose, cuts a step short. A terminal that is closed, or a lost
connection, sends SIGHUP, which means the same, except under `nohup`.

Before the loop there is nothing to save, and SIGTERM ends the process. During imports both signals wait, because code
that is being imported may catch the exception. A rank that waits for the others to connect runs no Python handler, so
there the signals keep the system's meaning.

Only the main thread of a process receives signals. In other threads these functions change nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers

_newest: signal.Signals | None = None


def interrupted_by() -> signal.Signals | None:
    """The signal that last asked a loop of this process to stop. None if no rank, or only another, received one."""
    return _newest


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a run to stop: Ctrl-C, SIGTERM and, except under `nohup`, which has it ignored, SIGHUP."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]


def pass_on(number: int, processes: Iterable[int | None]) -> bool:
    """Send a signal to these processes, by number; whether any is there: they may have ended, or not started (None)."""
    reached = False
    for process in processes:
        with suppress(ProcessLookupError, TypeError):
            os.kill(process, number)  # type: ignore[arg-type]
            reached = True
    return reached


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C, SIGTERM or SIGHUP came. A second Ctrl-C raises KeyboardInterrupt.

    It does so through the handler from outside, which may ignore a third one until the block has cleaned up.
    """
    received: list[int] = []  # no lock: the handler may interrupt itself, and would wait for itself
    outside = signal.getsignal(signal.SIGINT)
    again = outside if callable(outside) else signal.default_int_handler  # A shell's `&` has Ctrl-C ignored.

    def request(number: int, frame: FrameType | None) -> None:
        global _newest
        _newest = signal.Signals(number)
        if not received:
            signal.signal(signal.SIGINT, again)
        received.append(number)

    with _handling(dict.fromkeys(stop_signals(), request)):
        yield lambda: bool(received)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises SystemExit(0), which closes open files and locks: for the time before and after the loop."""

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise SystemExit(0)

    with _handling({signal.SIGTERM: leave}):
        yield


@contextmanager
def held_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM take effect at the end of the block. The second of a kind takes effect at once."""
    outside = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    received: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, outside[signal.Signals(number)])

    with _handling(dict.fromkeys(outside, hold)):
        yield
    for number in received[:1]:
        signal.raise_signal(number)


@contextmanager
def unhandled_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process at once: for a long wait outside of Python with nothing open."""
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    with _handling(dict.fromkeys(numbers, signal.SIG_DFL)):
        yield


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
