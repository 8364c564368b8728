"""Decompress the frames of a multi-frame file in several threads, in order.

zstd releases the GIL, and no frame depends on another, so a shard of frames of 1 MiB decodes as fast as there are
cores. Frames are walked block by block (zstd_frames.py), which needs no decoding: one that ends within 8 MiB of text is
handed whole to a thread, together with its neighbours until they are worth the handing over; a longer one (a released
shard is a single frame of 43 GB) is decoded where it is met. Either way zstd is given the same portions as by
`decompress_frames`, so the text, and what is told of damage, are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future
from typing import BinaryIO

from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.zstd_frames import Blocks, Stored, decode, walk_frames

LONGEST_BLOCKS = 64
"""A frame of more blocks (of 128 KiB of text at most) is long."""
TASK_BLOCKS = 8
"""Frames are handed to a thread when they have so many blocks together."""

Decoded = tuple[list[bytes], ShardDamage | None]


def decompress_in_threads(
    file: BinaryIO, max_window: int, *, executor: Executor, most: int
) -> Generator[bytes, None, None]:
    """Like `decompress_frames`, with the frames decoded by `executor`, at most `most` tasks ahead of the consumer."""
    tasks: deque[Future[Decoded]] = deque()
    task: list[Blocks] = []

    def given_out(most: int) -> Iterator[bytes]:
        nonlocal task
        if task:
            tasks.append(executor.submit(_decode_all, task, max_window))
            task = []
        while len(tasks) > most:
            pieces, damage = tasks.popleft().result()
            yield from pieces
            if damage is not None:
                cancel()
                raise damage

    def cancel() -> None:
        while tasks:
            tasks.pop().cancel()

    try:
        for blocks in walk_frames(Stored(file, None), max_window):
            if blocks.gather(LONGEST_BLOCKS):
                task.append(blocks)
                if sum(frame.count for frame in task) >= TASK_BLOCKS:
                    yield from given_out(most)
            else:
                yield from given_out(0)
                yield from decode(blocks, max_window)
    except ShardDamage:
        yield from given_out(0)  # what lies before the damage, if the damage is not there
        raise
    else:
        yield from given_out(0)
    finally:
        cancel()


def _decode_all(frames: list[Blocks], max_window: int) -> Decoded:
    """The text of whole frames, and the damage that ended it."""
    pieces: list[bytes] = []
    try:
        for blocks in frames:
            pieces.extend(decode(blocks, max_window))
    except ShardDamage as damage:
        return pieces, damage
    return pieces, None
