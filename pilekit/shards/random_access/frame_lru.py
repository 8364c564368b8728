"""Decoded frames in memory, least recently used dropped first: neighbouring documents share one decoding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np

from pilekit.shards.index.format import ShardIndex
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES

HELD_BYTES = 64 << 20
WHOLE_BYTES = 128 << 20
"""Corpora up to this size, decoded, are held whole for repeated reads."""
BYTES_PER_LINE = 8
"""The memory that a decoded frame takes for the place of each line, besides its text."""


def frames_fit(index: ShardIndex, held_bytes: int = HELD_BYTES, max_document_bytes: int = MAX_DOCUMENT_BYTES) -> bool:
    """Whether the shard's frames are small enough to be decoded whole.

    The measure is the size of the frame in which a byte of text lies, averaged over all bytes. A single long document
    hardly changes it, but no frame may be longer than the longest document.
    """
    sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes).astype(np.float64)
    sizes += BYTES_PER_LINE * np.diff(index.frames.line, append=index.header.lines)
    # The sum of squares by the sum is that average.
    fit = float(np.square(sizes).sum()) <= held_bytes * float(sizes.sum())
    return fit and sizes.max(initial=0) <= max_document_bytes


class FrameLRU:
    """The most recently used frames of one or several shards, together at most `held_bytes`.

    whole   whether the corpus has at most `WHOLE_BYTES` of text, so that all of its frames are held
    """

    def __init__(self, held_bytes: int = HELD_BYTES, *, whole: bool = False) -> None:
        self.held_bytes, self.whole = held_bytes, whole
        self._frames: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> Any:
        """The frame of that key; None if it is not held."""
        if key not in self._frames:
            return None
        self._frames.move_to_end(key)
        return self._frames[key][0]

    def add(self, key: Hashable, frame: object, size: int) -> None:
        """Hold a frame of `size` bytes, and drop the least recently used frames if there are too many bytes."""
        self._frames[key] = (frame, size)
        self._bytes += size
        while self._bytes > (WHOLE_BYTES if self.whole else self.held_bytes):
            _, (_, dropped) = self._frames.popitem(last=False)
            self._bytes -= dropped
