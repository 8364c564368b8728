"""Write a shard: lines byte for byte, in checksummed frames that can be sought, renamed into place when complete.

`.jsonl.zst` is cut into frames of about 1 MiB of text (+2.4 % size against one long frame at level 3), each with its
size and checksum, always at a line's end; a seek table in the zstd seekable format comes last. Every zstd tool reads
the file as it is.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.open import storage_of
from pilekit.shards.write.frame_writer import FRAME_BYTES, FrameWriter


class ShardWriter:
    """Writes one shard; use it as a context manager.

    path         ends in .jsonl.zst, .jsonl.gz or .jsonl, which decides how it is stored
    level        zstd compression level; 3 as in the released Pile
    frame_bytes  text in a frame, at least; a frame ends with the line that reaches it
    follow_links of a symbolic link, replace the file that it leads to; False: the link itself

    The file appears under its name only when the block ends without an exception; else nothing is left.
    `documents` and `text_bytes` (line bytes, newlines included) tell what was written.
    """

    def __init__(self, path: str | Path, *, level: int = 3, frame_bytes: int = FRAME_BYTES, follow_links: bool = True):
        self.path = Path(path)
        self.storage = storage_of(str(path))
        if self.storage == "parquet":
            raise PilekitError(f"{visible(str(path))}: shards are written as .jsonl.zst, .jsonl.gz or .jsonl")
        self.level = level
        self.frame_bytes = frame_bytes
        self.follow_links = follow_links
        self.documents = 0
        self.text_bytes = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._atomic: AbstractContextManager[BinaryIO] | None = None

    def __enter__(self) -> Self:
        self._atomic = write_atomically(self.path, follow_links=self.follow_links)
        self._file = self._atomic.__enter__()
        self._frames = FrameWriter(self._file, self.level) if self.storage == "zstd" else None
        # No name and no time in the header: the same lines must give the same bytes.
        self._gzip = gzip.GzipFile("", "wb", 6, self._file, mtime=0) if self.storage == "gzip" else None
        return self

    def write(self, batch: DocumentBatch) -> None:
        """Write the documents of a batch: their original lines, re-encoded only where the text was edited."""
        self.write_lines(batch.raw_lines())

    def write_lines(self, lines: Iterable[bytes | memoryview]) -> None:
        """Write lines, given without their newline; one that holds a newline is a `PilekitError` when it is stored."""
        if self._atomic is None:
            raise PilekitError(f"{visible(str(self.path))}: is not open; write inside `with ShardWriter(...):`")
        for line in lines:
            # A copy: a view would keep the 2 MiB alive that it lies in, and of a small sample thousands are held.
            self._held.append(bytes(line))
            self._held.append(b"\n")
            self._held_bytes += len(line) + 1
            self.documents += 1
            if self._held_bytes >= self.frame_bytes:
                self._flush()

    def _flush(self) -> None:
        text = b"".join(self._held)
        # A newline inside a line would shift the numbers, and so the identity, of all documents behind it.
        if text.count(b"\n") != len(self._held) // 2:
            raise PilekitError(
                f"{visible(str(self.path))}: a line to be written holds a newline; give each line by itself"
            )
        self._held, self._held_bytes = [], 0
        self.text_bytes += len(text)
        (self._frames or self._gzip or self._file).write(text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._atomic is not None
        atomic, self._atomic = self._atomic, None
        try:
            if error is None:
                if self._held:
                    self._flush()
                if self._gzip is not None:
                    self._gzip.close()
                elif self._frames is not None:
                    self._frames.finish()
        except BaseException as failure:
            if not atomic.__exit__(type(failure), failure, failure.__traceback__):
                raise
        else:
            atomic.__exit__(kind, error, traceback)
