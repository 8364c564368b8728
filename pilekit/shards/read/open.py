"""From a path, URL or `-` to a binary file of stored bytes, and how those bytes are to be decoded.

Reading can fail long after opening: a connection drops, a disk has a bad sector. Every store raises errors of its own
making then (aiohttp's are no OSErrors), so what is opened here turns whatever its `read` raises into `ShardDamage`.
Before that, what a store failed to give is asked for again (see corpus/stores.py), and less than it says it has is a
failure too.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import BinaryIO, Literal, cast

from pilekit.artifacts.atomic_write import final_name
from pilekit.corpus.shard import is_url, without_query
from pilekit.corpus.stores import is_missing, reason_of, retried, store_of
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.zstd_frames import FRAME_MAGIC, is_skippable

Storage = Literal["zstd", "gzip", "plain", "parquet"]

_SUFFIXES: dict[str, Storage] = {
    ".zst": "zstd",
    ".zstd": "zstd",
    ".gz": "gzip",
    ".parquet": "parquet",
    ".jsonl": "plain",
    ".json": "plain",
    ".ndjson": "plain",
}


def storage_of(path: str) -> Storage:
    """How the file is stored, by its last suffix; raises `PilekitError` for a suffix that no shard has.

    A partial file, which its writer may read back, is stored as the one that it becomes.
    """
    name = final_name(without_query(path))
    for suffix, storage in _SUFFIXES.items():
        if name.endswith(suffix):
            return storage
    raise PilekitError(
        f"{visible(path)}: is not named like a shard (.jsonl.zst, .jsonl.gz, .jsonl, .json.zst or .parquet); "
        "rename it, or pipe its text into standard input (-)"
    )


def is_parquet(path: str) -> bool:
    """Whether the shard is a Parquet file, which has rows where others have lines."""
    return path != "-" and storage_of(path) == "parquet"


class _StoredFile(io.RawIOBase):
    """A file for reading whose failures are `ShardDamage`, with the byte from which on it could not be read.

    size   of what lies in a store that can be read from anywhere; None: nothing is tried again
    """

    def __init__(self, file: BinaryIO, path: str = "", size: int | None = None):
        self.file, self.path, self.size, self.position = file, path, size, 0

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self.file.read(size) if self.size is None else retried(lambda: self._whole(size), self.path)
        except Exception as error:
            raise self._unreadable(error) from error
        self.position += len(data)
        return data

    def _whole(self, size: int) -> bytes:
        """One attempt: the next `size` bytes, or all that the file has."""
        assert self.size is not None
        if self.file.tell() != self.position:
            self.file.seek(self.position)
        data = self.file.read(size)
        left = max(0, self.size - self.position)
        if len(data) < (left if size < 0 else min(size, left)):
            raise ConnectionError(f"{len(data):,} bytes came where {size:,} were asked for")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            self.position = self.file.seek(offset, whence)
        except Exception as error:
            raise self._unreadable(error) from error
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

    def _unreadable(self, error: Exception) -> ShardDamage:
        why = reason_of(error)
        reason = f"cannot be read further ({why}); check the connection or disk and try again, or copy the file first"
        return ShardDamage(reason, frame=None, byte=self.position)


def open_stored(path: str, *, scattered: bool = False) -> tuple[BinaryIO, Storage]:
    """Open a shard's stored bytes; `-` is standard input, whose storage is told by its first bytes.

    `scattered`: only some places will be read, so from a URL nothing is fetched but what is asked for.
    """
    if path == "-":
        return _open_standard_input()
    storage = storage_of(path)
    return open_file(path, scattered=scattered), storage


def open_file(path: str, *, scattered: bool = False) -> BinaryIO:
    """Open a file of any name, at a path or URL, as `open_stored` does; `PilekitError` if it cannot be opened."""
    try:
        if is_url(path):
            return cast(BinaryIO, retried(lambda: _open_remote(path, scattered), path))
        return cast(BinaryIO, _StoredFile(Path(path).open("rb")))
    except FileNotFoundError as error:
        if not is_missing(error):
            raise PilekitError(
                f"{visible(path)}: cannot be opened ({reason_of(error)}); check the connection and try again"
            ) from error
        raise PilekitError(f"{visible(path)}: no such file; check the path") from None
    except IsADirectoryError:
        raise PilekitError(f"{visible(path)}: is a folder, not a shard; name a file in it, or use Corpus()") from None
    except PermissionError:
        raise PilekitError(f"{visible(path)}: may not be read (permission denied)") from None
    except Exception as error:
        why = visible(str(error) or type(error).__name__, 300)
        raise PilekitError(f"{visible(path)}: cannot be opened: {why}") from error


def _open_remote(url: str, scattered: bool) -> _StoredFile:
    store, inner = store_of(url)
    file = store.open(inner, "rb", cache_type="none") if scattered else store.open(inner, "rb")
    size = getattr(file, "size", None)  # A store that can only be read from the beginning tells none.
    return _StoredFile(file, url, size if isinstance(size, int) else None)


def exists(path: str) -> bool:
    """Whether there is such a file at a path or URL; where that cannot be told, there is none."""
    if not is_url(path):
        return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises where a folder on the way may not be read)
    try:
        store, inner = store_of(path)
        return bool(retried(lambda: store.info(inner), path)["type"] == "file")
    except Exception:  # Stores raise errors of their own making; the shard itself will tell what is wrong.
        return False


def _open_standard_input() -> tuple[BinaryIO, Storage]:
    try:
        if sys.stdin is None or sys.stdin.closed:
            raise PilekitError("standard input (-) is closed; pipe a shard into it, or name a file")
        try:
            # A buffer of our own: the interpreter waits at exit for whoever still reads from its own one.
            file = io.BufferedReader(io.FileIO(os.dup(sys.stdin.fileno())))
        except io.UnsupportedOperation:
            file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[arg-type]
        magic = file.peek(4)[:4]
    except OSError as error:
        raise PilekitError(f"standard input (-) cannot be read: {error.strerror}; pipe a shard into it") from error
    stored = cast(BinaryIO, _StoredFile(cast(BinaryIO, file)))
    if magic == FRAME_MAGIC or is_skippable(magic):
        return stored, "zstd"
    if magic[:2] == b"\x1f\x8b":
        return stored, "gzip"
    return stored, "plain"
