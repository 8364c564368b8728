"""Run kernels in threads while a shard is read; results come in order, and few batches are in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGE_BYTES = 16 << 20
"""An item of more bytes is processed by the caller's thread, so that no second such item is in memory."""


def map_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    *,
    size_of: Callable[[Item], int],
    rounds: int = 1,
    large_bytes: int = LARGE_BYTES,
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, result) for each item in order, while further items are read.

    threads       0: only the caller's thread
    size_of       the bytes of an item; nothing is read while an item of more than `large_bytes` is processed
    rounds        how many items wait for each thread; several where items are read in bursts
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for item in items:
            alone = threads < 1 or size_of(item) > large_bytes
            while waiting and (alone or len(waiting) > rounds * threads):
                finished_item, future = waiting.popleft()
                yield finished_item, future.result()
                del finished_item, future
            if alone:
                yield item, function(item)
            else:
                waiting.append((item, pool.submit(function, item)))
            del item
        for finished_item, future in waiting:
            yield finished_item, future.result()
