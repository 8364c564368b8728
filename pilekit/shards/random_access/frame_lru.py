"""How one line of a frame is reached: the decoded frame is held, or gone through from its beginning.

Frames of up to 64 MiB are held, those used last, 64 MiB in all: random numbers of a small shard decode each of its
frames once, neighbours in a large one share theirs. A larger frame is gone through, and the pass waits where it got to
for a line that lies further on.

To find a line in a held frame, its newlines are counted (3.6 GB/s) per 4 KiB when the first is asked for; a line is
then some binary steps and a short search away. The place of every line would be found sooner, but a frame of nothing
but newlines has 64 million of them. Many lines at once are found by all places, of 2 MiB at a time (7 GB/s); a frame of
1 MiB with few newlines keeps those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterable, Iterator, Sized
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

HELD_BYTES = 64 << 20
WHOLE_BYTES = 128 << 20
"""A corpus of so much decoded text is held one and all by who wants any of its documents many times."""
_STRIDE = 4096
_BLOCK = 2 << 20
_FEW = 64
_NEWLINE = ord("\n")

T = TypeVar("T")
B = TypeVar("B", bound=Sized)


class HeldFrames(Generic[T]):
    """The frames used last, of one shard or of several, together at most `HELD_BYTES`.

    whole   they are those of a corpus of at most `WHOLE_BYTES`, and each is held, whoever asks for it
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
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
        while self._bytes > (WHOLE_BYTES if self.whole else HELD_BYTES):
            _, (_, dropped) = self._frames.popitem(last=False)
            self._bytes -= dropped


class FrameText:
    """The decoded text of one frame."""

    def __init__(self, pieces: Iterable[bytes]):
        self.data = b"".join(pieces)
        # Where its newlines are, if it is a usual frame, in which there are few.
        self._few: Int64 | None = None

    @cached_property
    def newlines(self) -> int:
        """How many there are."""
        count = 0
        for places in self._places():
            count += len(places)
            if len(self.data) <= _BLOCK and count * _FEW <= len(self.data):
                self._few = places
        return count

    @cached_property
    def _before(self) -> Int64:
        """How many there are before each stride."""
        data = self.data
        return np.cumsum([0, *(data.count(b"\n", begin, begin + _STRIDE) for begin in range(0, len(data), _STRIDE))])

    def _places(self) -> Iterator[Int64]:
        """Where they are, block by block."""
        if self._few is not None:
            yield self._few
            return
        data = np.frombuffer(self.data, dtype=np.uint8)
        for at in range(0, len(data), _BLOCK):
            yield np.flatnonzero(data[at : at + _BLOCK] == _NEWLINE) + at

    def behind_newline(self, count: int) -> int:
        """Where what follows the first `count` newlines begins; there must be so many."""
        if not count:
            return 0
        stride = int(np.searchsorted(self._before, count)) - 1
        at = stride * _STRIDE
        for _ in range(count - int(self._before[stride])):
            at = self.data.find(b"\n", at) + 1
        return at

    def behind_newlines(self, counts: Int64) -> tuple[Int64, Int64]:
        """Where what follows the first `counts[i]` newlines begins, and where it ends: both int64 [counts].

        `counts` must increase, and there be so many newlines. What no newline follows ends where the data do.
        """
        begins, ends = np.zeros_like(counts), np.full_like(counts, len(self.data))
        following = counts + 1
        seen = 0
        for places in self._places():
            for wanted, found, behind in ((counts, begins, 1), (following, ends, 0)):
                low, high = np.searchsorted(wanted, (seen + 1, seen + len(places) + 1))
                found[low:high] = places[wanted[low:high] - (seen + 1)] + behind
            seen += len(places)
        return begins, ends


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
