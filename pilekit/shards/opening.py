"""From a path, URL or `-` to a binary file of stored bytes, and how those bytes are to be decoded."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import BinaryIO, Literal, cast

from pilekit.corpus.shard import is_url, without_query
from pilekit.errors import PilekitError, visible
from pilekit.shards.frames import FRAME_MAGIC, is_skippable

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
    """How the file is stored, by its last suffix; raises `PilekitError` for a suffix that no shard has."""
    name = without_query(path)
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


def open_stored(path: str) -> tuple[BinaryIO, Storage]:
    """Open a shard's stored bytes; `-` is standard input, whose storage is told by its first bytes."""
    if path == "-":
        return _open_standard_input()
    storage = storage_of(path)
    try:
        if is_url(path):
            import fsspec

            return cast(BinaryIO, fsspec.open(path, "rb").open()), storage
        return Path(path).open("rb"), storage
    except FileNotFoundError:
        raise PilekitError(f"{visible(path)}: no such file; check the path") from None
    except IsADirectoryError:
        raise PilekitError(f"{visible(path)}: is a folder, not a shard; name a file in it, or use Corpus()") from None
    except PermissionError:
        raise PilekitError(f"{visible(path)}: may not be read (permission denied)") from None
    except (OSError, ImportError, ValueError) as error:
        raise PilekitError(f"{visible(path)}: cannot be opened: {visible(str(error), 300)}") from error


def _open_standard_input() -> tuple[BinaryIO, Storage]:
    try:
        # A buffer of our own: the interpreter waits at exit for whoever still reads from its own one.
        file = io.BufferedReader(io.FileIO(os.dup(sys.stdin.fileno())))
    except io.UnsupportedOperation:
        file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[arg-type]
    magic = file.peek(4)[:4]
    if magic == FRAME_MAGIC or is_skippable(magic):
        return file, "zstd"
    if magic[:2] == b"\x1f\x8b":
        return file, "gzip"
    return file, "plain"
