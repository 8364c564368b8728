"""How one line of a frame is reached: the decoded frame is held, or gone through from its beginning.

Frames of up to 64 MiB are held, those used last, 64 MiB in all: random numbers of a small shard decode each of its
frames once, neighbours in a large one share theirs. A larger frame is gone through, and the pass waits where it got to
for a line that lies further on.

To find a line in a held frame, its newlines are counted (3.6 GB/s) per 4 KiB when it is decoded; a line is then some
binary steps and a short search away. The place of every line would be found sooner, but a frame of nothing but newlines
has 64 million of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterable, Sized
from typing import Generic, TypeVar

import numpy as np

HELD_BYTES = 64 << 20
_STRIDE = 4096

T = TypeVar("T")
B = TypeVar("B", bound=Sized)


class HeldFrames(Generic[T]):
    """The frames used last, of one shard or of several, together at most `HELD_BYTES`."""

    def __init__(self) -> None:
        self._frames: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> T | None:
        """The frame of that key, if it is held."""
        if key not in self._frames:
            return None
        self._frames.move_to_end(key)
        return self._frames[key][0]

    def add(self, key: Hashable, frame: T, size: int) -> None:
        """Hold a frame of `size` bytes, and let go of those that were used longest ago."""
        self._frames[key] = (frame, size)
        self._bytes += size
        while self._bytes > HELD_BYTES:
            _, (_, dropped) = self._frames.popitem(last=False)
            self._bytes -= dropped


class FrameText:
    """The decoded text of one frame."""

    def __init__(self, pieces: Iterable[bytes]):
        self.data = data = b"".join(pieces)
        counts = [data.count(b"\n", begin, begin + _STRIDE) for begin in range(0, len(data), _STRIDE)]
        self._before = np.cumsum([0, *counts])

    @property
    def newlines(self) -> int:
        """How many there are."""
        return int(self._before[-1])

    def behind_newline(self, count: int) -> int:
        """Where what follows the first `count` newlines begins; there must be so many."""
        if not count:
            return 0
        stride = int(np.searchsorted(self._before, count)) - 1
        at = stride * _STRIDE
        for _ in range(count - int(self._before[stride])):
            at = self.data.find(b"\n", at) + 1
        return at


class ForwardPass(Generic[B]):
    """Going through the lines, or rows, from the beginning of a frame on, block by block.

    frame    where it began
    first    number of the first line of the current block: what lies before cannot be had any more
    read     number of the first line not read yet
    blocks   the lines from the frame's first one on
    """

    def __init__(self, frame: int, first: int, blocks: Generator[B, None, None]):
        self.frame, self.first, self.read, self.blocks = frame, first, first, blocks
        self._block: B | None = None

    def leads_to(self, frame: int, number: int) -> bool:
        """Whether going on from here is the way to this line of that frame."""
        return self.frame == frame and number >= self.first

    def find(self, number: int) -> tuple[B, int] | None:
        """The block with this line, and the line's place in it; None if there is none up to the end."""
        while self._block is None or number >= self.read:
            self._block = next(self.blocks, None)
            if self._block is None:
                return None
            self.first, self.read = self.read, self.read + len(self._block)
        return self._block, number - self.first
