"""A shard that changes while it is read is an error that names it, never an output made of two shards.

Downloads, `rsync --inplace` and editors replace, cut or extend files that are being read. So whoever reads a shard
whole opens it with `open_unchanged`, which compares its state at the beginning with that at the end: of a local file
size, times and inode; of a URL the size, tag and time that its store gives. Output
gets its name after that, so nothing is published of a shard that changed.

A job of many shards takes the version of each when it begins, and compares it when the shard was read: what it noted
of a shard then holds for this version, and for no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from pilekit.corpus.shard import STANDARD_INPUT, is_url
from pilekit.corpus.stores import is_missing, reason_of, retried, store_of
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.open import Storage, open_stored

_TAGS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created", "generation")
"""What stores call the tag or the time of a file's content."""


class ShardChanged(PilekitError):
    """A shard is not what it was when its reading, or the job, began."""


def version_of(path: str) -> str:
    """Size and time of change of a shard, or size and tag as its store gives them; "" where they are not known."""
    return " ".join(map(str, _known(path)[:2]))


def check_version(path: str, version: str) -> None:
    """Raise `ShardChanged` if the shard has not this version any more."""
    if version and version_of(path) != version:
        raise ShardChanged(f"{visible(path)}: was changed while it was read; run again")


@contextmanager
def open_unchanged(path: str) -> Iterator[tuple[BinaryIO, Storage]]:
    """Open a shard's stored bytes for one reading; `ShardChanged` if the shard is another when the reading ends.

    What goes wrong with a shard that changed meanwhile is told as that. Standard input is not ours to close, as closing
    it would wait for a read that may never end.
    """
    file, storage = open_stored(path)
    if path == STANDARD_INPUT:
        yield file, storage
        return
    with file:
        before = _known(path) if is_url(path) else _local(file.fileno())
        try:
            yield file, storage
        except (PilekitError, ShardDamage) as error:
            _compare(path, before, error)
            raise
        _compare(path, before)


def _compare(path: str, before: tuple[Any, ...], cause: Exception | None = None) -> None:
    if before and _state(path) != before:  # an open file keeps its inode, so no other file has the same
        raise ShardChanged(f"{visible(path)}: was changed while it was read; run again") from cause


def _known(path: str) -> tuple[Any, ...]:
    try:
        return _state(path)
    except PilekitError:
        return ()


def _state(path: str) -> tuple[Any, ...]:
    """What changes when the shard does, size first; () where that cannot be told."""
    if path == STANDARD_INPUT:
        return ()
    if is_url(path):
        return _remote(path)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opened, as a share caches what stat tells
    except OSError:
        return ()
    try:
        return _local(file)
    finally:
        os.close(file)


def _local(file: int) -> tuple[Any, ...]:
    about = os.fstat(file)
    # Nobody can set the time of the last status change back, as `cp -p` and `rsync -t` do with that of the content.
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _remote(url: str) -> tuple[Any, ...]:
    try:
        store, path = store_of(url)
        store.invalidate_cache(path)
        about = retried(lambda: store.info(path), url)
    except Exception as error:  # Stores raise errors of their own making.
        if not is_missing(error):
            raise PilekitError(f"{visible(url)}: cannot be asked whether it changed: {reason_of(error)}") from error
        return ()
    return about.get("size"), " ".join(str(about[tag]) for tag in _TAGS if tag in about)
