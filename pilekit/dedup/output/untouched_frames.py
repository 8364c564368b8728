"""The frames of a shard that a copy of it can take as they are stored, because every line of them stays.

Compressing takes two thirds of the time of a copy, and a stored frame keeps the level of its corpus. A frame is taken
if it ends with a checksum, gives its size, and its text is one whole block of lines: a frame as pilekit writes them.
The long frame of a released shard, and frames of other sizes, are compressed again.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import zstandard

from pilekit.corpus.shard import is_url
from pilekit.shards.read.lines import LineBlock, LineCount
from pilekit.shards.read.read_errors import ShardDamage
from pilekit.shards.read.zstd_frames import LARGEST_HEADER, stored_frame


class UntouchedFrames:
    """Knows the stored frame of the block that was read last; a `ShardWatch`.

    path         the shard's; frames of a URL are not taken, as they would be fetched again
    least_bytes  smaller frames are not taken; blocks are made of pieces of text that have as many bytes or more
    """

    def __init__(self, path: str, least_bytes: int):
        self.count = LineCount()
        self._path, self._least_bytes = path, least_bytes
        # Of frames that begin with a piece of enough text: where that is in the text, and the frame's first byte.
        self._begins: deque[tuple[int, int]] = deque()
        self._begun: int | None = None
        self._decoded = self._read = 0
        self._block = (0, -1)  # its bytes, and the first stored byte of the frame that begins with it

    def see_stored(self, data: bytes) -> None:
        """Ignore the stored bytes."""

    def see_frame(self, number: int, offset: int) -> None:
        """A frame begins at this stored byte."""
        self._begun = None if is_url(self._path) else offset

    def see_text(self, piece: bytes) -> None:
        """The first piece of a frame decides whether it may be taken."""
        if self._begun is not None and len(piece) >= self._least_bytes:
            self._begins.append((self._decoded, self._begun))
        self._begun = None
        self._decoded += len(piece)

    def see_block(self, block: LineBlock) -> LineBlock:
        """Find the frame that begins with the block."""
        begin, size = self._read, block.end - block.begin
        if block.head is not None:
            size += len(block.head) + 1
        while self._begins and self._begins[0][0] < begin:
            self._begins.popleft()
        starts = block.head is None and bool(self._begins) and self._begins[0][0] == begin
        self._block = (size, self._begins[0][1] if starts else -1)
        self._read = begin + size
        return block

    def stored(self, text: bytes) -> bytes | None:
        """The stored frame, if `text`, some lines of the last block, is its whole text."""
        size, offset = self._block
        if offset < 0 or len(text) != size:
            return None
        try:
            with Path(self._path).open("rb") as file:
                frame = stored_frame(file, offset)
            parameters = zstandard.get_frame_parameters(frame[:LARGEST_HEADER])
        except (OSError, ShardDamage, zstandard.ZstdError):  # The shard has changed, which `Inputs.check` tells.
            return None
        return frame if parameters.has_checksum and parameters.content_size == size else None
