"""Detect a shard that changes while it is read. An error then names it, so no output mixes two versions of a shard.

Downloads, `rsync --inplace` and editors replace, cut or extend files that are being read. `open_unchanged` compares the
shard's state before and after the reading: size, times and inode of a local file; size, tag and time that the store
reports for a URL. Output gets its final name after that check, so a shard that changed leaves no output.

A job over many shards records the version of each shard when it begins and compares it after reading the shard. The
job's notes about a shard are valid for this version only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from pilekit.corpus.shard import STANDARD_INPUT, is_url
from pilekit.corpus.stores import is_missing, reason_of, retry, store_of
from pilekit.errors import PilekitError
from pilekit.shards.read.open import Storage, open_stored
from pilekit.shards.read.read_errors import ShardDamage

_TAGS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created", "generation")
"""The names that stores use for the tag or the time of a file's content."""


class ShardChanged(PilekitError):
    """A shard has changed since its reading, or the job, began."""


def version_of(path: str) -> str:
    """Size and modification time of a shard, or the size and tag that its store reports; "" if unknown."""
    return " ".join(map(str, _state_if_known(path)[:2]))


def check_version(path: str, version: str) -> None:
    """Raise `ShardChanged` if the shard has another version now."""
    if version and version_of(path) != version:
        raise _change_error(path)


@contextmanager
def open_unchanged(
    path: str, advance: Callable[[int], None] | None = None, on_read: Callable[[bytes], None] | None = None
) -> Iterator[tuple[BinaryIO, Storage]]:
    """Open a shard's stored bytes for one reading; raises `ShardChanged` if the shard changed before the block ended.

    advance   is called with the number of stored bytes of each read
    on_read   is called with all stored bytes that are read

    `ShardChanged` replaces any other error of a shard that changed. Standard input is not closed, because closing it
    could wait for a read that never ends.
    """
    file, storage = open_stored(path)
    file.advance, file.on_read = advance, on_read  # type: ignore[attr-defined]
    if path == STANDARD_INPUT:
        yield file, storage
        return
    with file:
        before = _state_if_known(path) if is_url(path) else _local_state(file.fileno())
        try:
            yield file, storage
        except (PilekitError, ShardDamage) as error:
            if before and _state(path) != before:
                raise _change_error(path) from error
            raise
        if before and _state(path) != before:
            raise _change_error(path)


def _change_error(path: str) -> ShardChanged:
    return ShardChanged(f"{path}: was changed while it was read; run again")


def _state_if_known(path: str) -> tuple[Any, ...]:
    try:
        return _state(path)
    except PilekitError:
        return ()


def _state(path: str) -> tuple[Any, ...]:
    """Values that change when the shard does, the size first; () if unknown."""
    if path == STANDARD_INPUT:
        return ()
    if is_url(path):
        return _remote_state(path)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opened: a network share may cache `stat`
    except OSError:
        return ()
    try:
        return _local_state(file)
    finally:
        os.close(file)


def _local_state(file: int) -> tuple[Any, ...]:
    about = os.fstat(file)
    # `cp -p` and `rsync -t` set the modification time back, but nobody can set the status change time back.
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _remote_state(url: str) -> tuple[Any, ...]:
    try:
        store, path = store_of(url)
        store.invalidate_cache(path)
        about = retry(lambda: store.info(path), url)
    except Exception as error:  # Every store raises its own errors.
        if not is_missing(error):
            raise PilekitError(f"{url}: cannot be asked whether it changed: {reason_of(error)}") from error
        return ()
    return about.get("size"), " ".join(str(about[tag]) for tag in _TAGS if tag in about)
