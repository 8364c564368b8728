"""Run kernels in threads while a shard is read; results come in order, and few batches are in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGE_BYTES = 16 << 20


def map_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    *,
    size_of: Callable[[Item], int],
    rounds: int = 1,
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, result) for each item in order, while further items are read.

    threads   0: only the caller's thread
    size_of   bytes of an item; nothing is read while a large item is processed
    rounds    how many items wait for each thread; several where items are read in bursts
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for item in items:
            alone = threads < 1 or size_of(item) > LARGE_BYTES
            while waiting and (alone or len(waiting) > rounds * threads):
                done, future = waiting.popleft()
                yield done, future.result()
                del done, future
            if alone:
                yield item, function(item)
            else:
                waiting.append((item, pool.submit(function, item)))
            del item
        for done, future in waiting:
            yield done, future.result()
