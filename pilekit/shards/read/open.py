"""Open a path, URL or `-` as a binary file of stored bytes, and find out how they are stored.

Reading can fail long after opening: a connection drops, a disk has a bad sector. Every store raises its own kind of
error then (aiohttp's are not OSErrors), so a file opened here turns every error of `read` into `ShardDamage`. A read
from a store is retried first (see corpus/stores.py); fewer bytes than the store announced count as a failure too.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from pilekit.artifacts.atomic_write import final_name
from pilekit.corpus.shard import STANDARD_INPUT, is_url, without_query
from pilekit.corpus.stores import is_missing, reason_of, retry, store_of
from pilekit.errors import PilekitError, shortened
from pilekit.shards.read.read_errors import ShardDamage
from pilekit.shards.read.zstd_frames import FRAME_MAGIC, MAX_WINDOW, PIECE_BYTES, is_skippable

Storage = Literal["zstd", "gzip", "plain", "parquet"]

MAX_DOCUMENT_BYTES = 1 << 30

_SUFFIXES: dict[str, Storage] = {
    ".zst": "zstd",
    ".zstd": "zstd",
    ".gz": "gzip",
    ".parquet": "parquet",
    ".jsonl": "plain",
    ".json": "plain",
    ".ndjson": "plain",
}
_MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (FRAME_MAGIC, "zstd", "rename it to .jsonl.zst"),
    (b"\x1f\x8b", "gzip", "rename it to .jsonl.gz"),
    (b"PAR1", "parquet", "rename it to .parquet"),
    (b"{", "plain", "rename it to .jsonl"),
    (b"\xfd7zXZ\0", "xz", "pilekit does not read that: xz -dc FILE | zstd -o NEW.jsonl.zst"),
    (b"BZh", "bzip2", "pilekit does not read that: bzip2 -dc FILE | zstd -o NEW.jsonl.zst"),
    (b"PK\3\4", "zip", "pilekit does not read that: unzip -p FILE | zstd -o NEW.jsonl.zst"),
)
"""The first bytes of a file, its storage, and the remedy if its name says otherwise."""
_SHOWN = {"plain": "JSON without compression", "parquet": "Parquet"}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a shard is read.

    advance              is called, from the decoding thread, with the number of stored bytes of each read
    ahead                whether to decompress in a thread
    stored               the stored bytes that this process reads in all; from many on, the compiled scan pays
    max_document_bytes   a longer line or row is an error
    max_window           a zstd frame that needs a larger window is an error
    piece_bytes          twice the least text that is cut into lines at a time
    """

    advance: Callable[[int], None] | None = None
    ahead: bool = True
    stored: int = 0
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    max_window: int = MAX_WINDOW
    piece_bytes: int = PIECE_BYTES


def storage_of(path: str) -> Storage:
    """How the file is stored, by its last suffix; raises `PilekitError` for a suffix that no shard has.

    A partial file, which its writer may read back, is stored like the final file.
    """
    name = final_name(without_query(path))
    for suffix, storage in _SUFFIXES.items():
        if name.endswith(suffix):
            return storage
    raise PilekitError(
        f"{path}: is not named like a shard (.jsonl.zst, .jsonl.gz, .jsonl, .json.zst or .parquet); "
        "rename it, or pipe its text into standard input (-)"
    )


def is_parquet(path: str) -> bool:
    """Whether the shard is a Parquet file, which has rows instead of lines."""
    return path != STANDARD_INPUT and storage_of(path) == "parquet"


class _StoredFile(io.RawIOBase):
    """A file whose read errors are `ShardDamage`, with the byte at which reading failed.

    size      the size of a file in a store that allows random access; None: reads are not retried
    advance   is called with the size of each read
    on_read   is called with all bytes that are read
    storage   how the file is stored by its name. Its first bytes may say otherwise: that is `ShardDamage` too
    """

    def __init__(self, file: BinaryIO, path: str = "", size: int | None = None):
        self.file, self.path, self.size, self.position, self.moved = file, path, size, 0, False
        self.advance: Callable[[int], None] | None = None
        self.on_read: Callable[[bytes], None] | None = None
        self.storage: Storage | None = None

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self.file.read(size) if self.size is None else retry(lambda: self._read_exactly(size), self.path)
        except Exception as error:
            if self.size is None or self.moved or not isinstance(error, ValueError):
                raise self._read_error(error) from error
            self._reopen_without_ranges()
            return self.read(size)
        if self.position == 0 and self.storage is not None:
            _check_start(data, self.storage)
        self.position += len(data)
        if self.advance is not None:
            self.advance(len(data))
        if self.on_read is not None:
            self.on_read(data)
        return data

    def _read_exactly(self, size: int) -> bytes:
        """One attempt to read the next `size` bytes, or the rest of the file."""
        assert self.size is not None
        if self.file.tell() != self.position:
            self.file.seek(self.position)
        data = self.file.read(size)
        remaining = max(0, self.size - self.position)
        if len(data) < (remaining if size < 0 else min(size, remaining)):
            raise ConnectionError(f"{len(data):,} bytes came where {size:,} were asked for")
        return data

    def _reopen_without_ranges(self) -> None:
        """Open the file again without ranges, which this web server lacks, and read up to the position."""
        store, inner = store_of(self.path)
        self.size, before = None, self.position
        try:
            self.file = store.open(inner, "rb", block_size=0)
            while before and (data := self.file.read(min(before, 1 << 20))):
                before -= len(data)
        except Exception as error:
            raise self._read_error(error) from error

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.moved = True
        try:
            self.position = self.file.seek(offset, whence)
        except Exception as error:
            raise self._read_error(error) from error
        return self.position

    def tell(self) -> int:
        return self.position

    def fileno(self) -> int:
        return self.file.fileno()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()

    def _read_error(self, error: Exception) -> Exception:
        if isinstance(error, MemoryError):
            return error
        why = reason_of(error)
        reason = f"cannot be read further ({why}); check the connection or disk and try again, or copy the file first"
        return ShardDamage(reason, frame=None, byte=self.position)


def _check_start(data: bytes, storage: Storage) -> None:
    """Raise `ShardDamage` if a file that begins with `data` is known to be stored in another way than its name says."""
    start = data[:8].lstrip()
    for magic, kind, remedy in _MAGICS:
        begins = start.startswith(magic) or (len(start) == 2 and magic.startswith(start))  # gzip's first read is short
        if begins and kind != storage:
            actual, named = _SHOWN.get(kind, kind), _SHOWN.get(storage, storage)
            raise ShardDamage(f"is {actual}, not {named}; {remedy}", frame=None, byte=0)


def open_stored(path: str, *, scattered: bool = False) -> tuple[BinaryIO, Storage]:
    """Open a shard's stored bytes; the first bytes of standard input (`-`) show how it is stored.

    scattered   only some places will be read, so fetch nothing else from a URL
    """
    if path == STANDARD_INPUT:
        return _open_standard_input()
    storage = storage_of(path)
    file = open_file(path, scattered=scattered)
    file.storage = storage  # type: ignore[attr-defined]
    return file, storage


def open_file(path: str, *, scattered: bool = False) -> BinaryIO:
    """Open a file of any name, at a path or URL, like `open_stored`; `PilekitError` if it cannot be opened."""
    try:
        if is_url(path):
            return cast(BinaryIO, retry(lambda: _open_remote(path, scattered), path))
        return cast(BinaryIO, _StoredFile(Path(path).open("rb")))
    except FileNotFoundError as error:
        if not is_missing(error):
            raise PilekitError(
                f"{path}: cannot be opened ({reason_of(error)}); check the connection and try again"
            ) from error
        raise PilekitError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise PilekitError(f"{path}: is a folder, not a shard; name a file in it") from None
    except PermissionError:
        raise PilekitError(f"{path}: may not be read (permission denied)") from None
    except Exception as error:
        why = shortened(str(error) or type(error).__name__, 300)
        raise PilekitError(f"{path}: cannot be opened: {why}") from error


def _open_remote(url: str, scattered: bool) -> _StoredFile:
    store, inner = store_of(url)
    file = store.open(inner, "rb", cache_type="none") if scattered else store.open(inner, "rb")
    size = getattr(file, "size", None)  # None for a store that only reads from the beginning
    return _StoredFile(file, url, size if isinstance(size, int) else None)


def exists(path: str) -> bool:
    """Whether a file exists at a path or URL; False if the store does not say."""
    if not is_url(path):
        return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises where a parent folder may not be read)
    try:
        store, inner = store_of(path)
        return bool(retry(lambda: store.info(inner), path)["type"] == "file")
    except Exception:  # Every store raises its own errors; reading the shard itself will report the problem.
        return False


def _open_standard_input() -> tuple[BinaryIO, Storage]:
    try:
        if sys.stdin is None or sys.stdin.closed:
            raise PilekitError("standard input (-) is closed; pipe a shard into it, or name a file")
        try:
            # A buffer of our own: at exit, the interpreter waits for a thread that reads from its own buffer.
            file = io.BufferedReader(io.FileIO(os.dup(sys.stdin.fileno())))
        except io.UnsupportedOperation:
            file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[arg-type]
        magic = file.peek(4)[:4]
    except OSError as error:
        raise PilekitError(f"standard input (-) cannot be read: {error.strerror}; pipe a shard into it") from error
    stored = _StoredFile(cast(BinaryIO, file))
    is_zstd = magic == FRAME_MAGIC or is_skippable(magic)
    stored.storage = "zstd" if is_zstd else "gzip" if magic[:2] == b"\x1f\x8b" else "plain"
    return cast(BinaryIO, stored), stored.storage
