"""Ctrl-C and SIGTERM, politely: both ask the loop to stop after its step, a second Ctrl-C stops at once.

A step that is cut in the middle would be lost; one that ends is saved. So either signal only sets a flag, which the
ranks share, since one that stopped alone would leave the others waiting. SIGTERM is what schedulers send before they
take a machine away, and launchers pass on: a rank may well get it twice, so only Ctrl-C, which a person presses again
on purpose, cuts short what is under way. Before the loop there is nothing to save, and SIGTERM just ends the process;
while modules are imported both wait, since an exception that is raised amid an import may be caught there and lost. A
rank that waits for others to come, in which Python hears of no signal, leaves them to the system.

Python lets nobody but the main thread have signals: elsewhere (a notebook's worker) nothing changes, and both do what
they always did.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers

_newest: signal.Signals | None = None


def interrupted_by() -> signal.Signals | None:
    """The signal that last asked a loop of this process to stop; None if only another rank had one, or none."""
    return _newest


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or SIGTERM came; another Ctrl-C raises KeyboardInterrupt."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        global _newest
        _newest = signal.Signals(number)
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with _handling({signal.SIGINT: ask, signal.SIGTERM: ask}):
        yield asked.is_set


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises SystemExit(0), so that what is open is closed: for all that goes before the loop and after it."""

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is under way, however often it is asked for
        raise SystemExit(0)

    with _handling({signal.SIGTERM: leave}):
        yield


@contextmanager
def held_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM do at the end of the block what they do outside; the second of a kind does it at once."""
    outside = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        signal.signal(number, outside[signal.Signals(number)])

    with _handling(dict.fromkeys(outside, hold)):
        yield
    for number in held[:1]:
        signal.raise_signal(number)


@contextmanager
def unhandled_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process on the spot: for a long wait outside of Python, with nothing open to close."""
    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    with _handling(dict.fromkeys(heard, signal.SIG_DFL)):
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
