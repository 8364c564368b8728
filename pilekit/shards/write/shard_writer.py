"""Write a shard: lines byte for byte, in seekable checksummed frames, renamed into place when complete.

`.jsonl.zst` is cut at line ends into frames of about 1 MiB of text, each with its size and checksum. A seek table in
the zstd seekable format ends the file. Every zstd tool can read it.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.display.wrong_names import NearestNames
from pilekit.documents import DocumentBatch, RecordFormat
from pilekit.errors import PilekitError
from pilekit.shards.read.open import is_parquet, storage_of
from pilekit.shards.write.seekable_frames import FRAME_BYTES, FrameWriter

if TYPE_CHECKING:
    from pilekit.shards.write.parquet_writer import RowGroups


class ShardWriter(NearestNames):
    """Writes one shard; use it as a context manager.

    path         its suffix (.jsonl.zst, .jsonl.gz or .jsonl) decides how it is stored
    level        zstd compression level; 3 as in the released Pile
    frame_bytes  the least text in a frame; a frame ends with the line that reaches it
    follow_links if `path` is a symbolic link, replace its target; False: replace the link

    The file appears under its name when the block succeeds; nothing is left when it fails. `documents` and `text_bytes`
    (bytes of the lines, newlines included) count what was written.
    """

    def __init__(self, path: str | Path, *, level: int = 3, frame_bytes: int = FRAME_BYTES, follow_links: bool = True):
        if not isinstance(path, str | Path):
            raise PilekitError(f"path is where the shard is to be written, not {path}")
        self.path = Path(path)
        self.storage = storage_of(str(path))
        if self.storage == "parquet":
            raise PilekitError(f"{path}: shards are written as .jsonl.zst, .jsonl.gz or .jsonl")
        self.level = level
        self.frame_bytes = frame_bytes
        self.follow_links = follow_links
        self.documents = 0
        self.text_bytes = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._open: AbstractContextManager[None] | None = None

    def __enter__(self) -> Self:
        self._open = self._writing()
        self._open.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        opened, self._open = self._open, None
        assert opened is not None
        opened.__exit__(*error)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with write_atomically(self.path, follow_links=self.follow_links) as self._file:
            self._frames = FrameWriter(self._file, self.level) if self.storage == "zstd" else None
            # No name and no time in the header: the same lines must give the same bytes.
            self._gzip = gzip.GzipFile("", "wb", 6, self._file, mtime=0) if self.storage == "gzip" else None
            yield
            if self._held:
                self._flush()
            if self._gzip is not None:
                self._gzip.close()
            elif self._frames is not None:
                self._frames.finish()

    def write(self, batch: DocumentBatch) -> None:
        """Write the documents of a batch: their original lines, but for texts that were edited."""
        self.write_lines(batch.raw_lines())

    def write_lines(self, lines: Iterable[bytes | memoryview]) -> None:
        """Write lines without their newlines; raises `PilekitError` for a line that holds a newline."""
        if self._open is None:
            raise PilekitError(f"{self.path}: is not open; write inside `with ShardWriter(...):`")
        for line in lines:
            # A copy: a view would keep its piece of 2 MiB alive, and a small sample holds thousands of lines.
            self._held.append(bytes(line))
            self._held.append(b"\n")
            self._held_bytes += len(line) + 1
            self.documents += 1
            if self._held_bytes >= self.frame_bytes:
                self._flush()

    def _flush(self) -> None:
        text = b"".join(self._held)
        # A newline inside a line would shift the number, and so the identity, of every document after it.
        if text.count(b"\n") != len(self._held) // 2:
            raise PilekitError(f"{self.path}: a line to be written holds a newline; give each line by itself")
        self._held, self._held_bytes = [], 0
        self.text_bytes += len(text)
        (self._frames or self._gzip or self._file).write(text)


def write_documents(path: Path, batches: Iterable[DocumentBatch], complete: Callable[[], None]) -> list[Path]:
    """Write all documents to the shard at `path` and return [path]; without documents, write no file and return [].

    complete    called before the file gets its name
    """
    writer: ShardWriter | RowGroups | None = None
    with ExitStack() as opened:
        for batch in batches:
            if writer is None and len(batch):
                writer = opened.enter_context(_writer(path, batch.format))
            if writer is not None:
                writer.write(batch)
        complete()
    return [] if writer is None else [path]


def _writer(path: Path, format: RecordFormat) -> AbstractContextManager[ShardWriter | RowGroups]:
    if not is_parquet(str(path)):
        return ShardWriter(path, follow_links=False)
    from pilekit.shards.write.parquet_writer import parquet_writer

    return parquet_writer(path, format)
