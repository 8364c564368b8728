"""Run an iterator ahead of its consumer, in a thread of its own.

Decompression releases the GIL, JSON parsing holds it, so the two overlap on two cores: 1.06-1.14 GB/s of text where one
core alone gives 0.56-0.74. It needs a short thread switch interval: with Python's 5 ms the decoding thread, which wants
the GIL for a few microseconds between two pieces, waits longer than decoding takes, and the pair falls to 0.7 GB/s. The
interval is a setting of the whole process, so it is shortened only while such a thread lives, and put back after.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")

SWITCH_INTERVAL_SECONDS = 0.00002

_lock = threading.Lock()
_running = 0
_usual_interval = 0.0


def _shorten_switch_interval() -> None:
    global _running, _usual_interval
    with _lock:
        if _running == 0:
            _usual_interval = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_interval, SWITCH_INTERVAL_SECONDS))
        _running += 1


def _restore_switch_interval() -> None:
    global _running
    with _lock:
        _running -= 1
        if _running == 0:
            sys.setswitchinterval(_usual_interval)


class _End:
    """Marks the end of the iterator: with the exception that ended it, if any."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


def run_ahead(items: Iterator[T], depth: int = 4) -> Generator[T, None, None]:
    """Yield `items`, with up to `depth` of them made in advance by a thread.

    An exception of the iterator is raised here in its turn, after all items before it. Closing the generator stops the
    thread and waits for it, so nothing runs on behind an abandoned reader (five seconds at most: a thread that waits
    for a silent pipe or server ends with the process).
    """
    ready: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def produce() -> None:
        end = _End()
        try:
            for item in items:
                ready.put(item)
                if stopped.is_set():
                    return
        except BaseException as error:
            end = _End(error)
        ready.put(end)

    thread = threading.Thread(target=produce, name="pilekit-run-ahead", daemon=True)
    _shorten_switch_interval()
    try:
        thread.start()
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stopped.set()
        give_up = time.monotonic() + 5
        while thread.is_alive() and time.monotonic() < give_up:
            # The thread may be waiting for a place in the queue: make one.
            try:
                ready.get(timeout=0.01)
            except queue.Empty:
                continue
        _restore_switch_interval()
