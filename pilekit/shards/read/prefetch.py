"""Run an iterator ahead of its consumer, in a thread.

Decompression releases the GIL and JSON parsing holds it, so the two overlap on two cores: 1.06-1.14 GB/s of text, where
one core gives 0.56-0.74. This needs a short thread switch interval. With Python's 5 ms, the decoding thread waits for
the GIL between two pieces longer than decoding takes, and the speed falls to 0.7 GB/s. The interval is a setting of the
whole process, so it is shortened only while a decoding thread lives.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

SWITCH_INTERVAL_SECONDS = 0.00002

_lock = threading.Lock()
_running = 0
_usual_interval = 0.0


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    global _running, _usual_interval
    with _lock:
        if _running == 0:
            _usual_interval = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_interval, SWITCH_INTERVAL_SECONDS))
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                sys.setswitchinterval(_usual_interval)


class _End:
    """The end of the iterator, with its exception if it failed."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


def run_ahead(items: Iterator[T], depth: int = 4) -> Generator[T, None, None]:
    """Yield `items`; a thread produces up to `depth` of them in advance.

    An exception of the iterator is raised here after all items before it. Closing the generator stops the thread and
    waits for it, at most five seconds: a thread that waits for a silent pipe or server ends with the process.
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
    with _short_switch_interval():
        thread.start()
        try:
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
                with suppress(queue.Empty):  # the thread may wait for a place in the queue: make one
                    ready.get(timeout=0.01)
