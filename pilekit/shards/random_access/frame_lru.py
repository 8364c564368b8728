"""Decoded frames: those used last are held, 64 MiB in all, so that neighbours share theirs.

Many lines of a frame are found by the places of its newlines, 2 MiB at a time (7 GB/s). A usual frame has few newlines
and keeps their places. A frame of nothing but newlines has 64 million of them, which would take eight times its text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pilekit.shards.index.format import ShardIndex

Int64 = npt.NDArray[np.int64]

HELD_BYTES = 64 << 20
WHOLE_BYTES = 128 << 20
"""Corpora up to this size, decoded, are held whole for repeated reads."""
_BLOCK = 2 << 20
_FEW = 64
_NEWLINE = ord("\n")

T = TypeVar("T")


def frames_fit(index: ShardIndex) -> bool:
    """Whether the frame in which a byte of text lies can be held, on average over the shard's bytes.

    A single long document hardly changes that: its frame is read through when one of its lines is asked for.
    """
    sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes)
    return float(np.square(sizes, dtype=np.float64).sum()) <= HELD_BYTES * float(sizes.sum())


class FrameLRU(Generic[T]):
    """The frames used last, of one shard or of several, together at most `HELD_BYTES`.

    whole   they are those of a corpus of at most `WHOLE_BYTES`, and all are held
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
        """Hold a frame of `size` bytes, and drop the frames that were used longest ago."""
        self._frames[key] = (frame, size)
        self._bytes += size
        while self._bytes > (WHOLE_BYTES if self.whole else HELD_BYTES):
            _, (_, dropped) = self._frames.popitem(last=False)
            self._bytes -= dropped


class FrameText:
    """The decoded text of one frame."""

    def __init__(self, pieces: Iterable[bytes]):
        self.data = b"".join(pieces)
        self._few: Int64 | None = None  # the places of its newlines, if they are few

    @cached_property
    def newlines(self) -> int:
        """How many there are."""
        count = 0
        found: list[Int64] = []
        for places in self._places():
            count += len(places)
            found = [*found, places] if count * _FEW <= len(self.data) else []
        if found:
            self._few = found[0] if len(found) == 1 else np.concatenate(found)
        return count

    def _places(self) -> Iterator[Int64]:
        """Where they are, block by block."""
        if self._few is not None:
            yield self._few
            return
        data = np.frombuffer(self.data, dtype=np.uint8)
        for at in range(0, len(data), _BLOCK):
            yield np.flatnonzero(data[at : at + _BLOCK] == _NEWLINE) + at

    def quick_line(self, count: int) -> memoryview | None:
        """What lies between the first `count` newlines and the next one, if their places are known."""
        if self._few is None or count >= len(self._few):
            return None
        return memoryview(self.data)[int(self._few[count - 1]) + 1 if count else 0 : int(self._few[count])]

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
