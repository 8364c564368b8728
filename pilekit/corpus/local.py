"""Finding shards in the local file system: one walk serves folders and globs.

A folder is the glob `folder/**/*`. Entries are read with `os.scandir`, whose entries know their kind without a further
call, so a folder of 100,000 files lists in a fraction of a second.
"""

# A Path per entry would take most of the time
# ruff: noqa: PTH112, PTH116, PTH118, PTH206

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from pilekit.artifacts.header import HEADER_FILE
from pilekit.corpus.shard import looks_like_shard
from pilekit.errors import PilekitError, visible

EVERYTHING = ("**", "*")


@dataclass
class Search:
    """What a search found: (path below root, path, stored bytes) of each shard, and the folders of ours passed over."""

    root: str
    files: list[tuple[str, str, int | None]] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)


def search(source: str) -> Search:
    """Shards at a path or glob; raises PilekitError if it does not exist or may not be read."""
    if os.path.isdir(source):
        return search_folder(source)
    if os.path.lexists(source):
        folder, name = os.path.split(source)
        return Search(folder or ".", [(name, source, _status(source).st_size)])
    if is_pattern(source):
        return _search_pattern(source)
    raise PilekitError(f"{visible(source)}: no such file or folder; check the path")


def is_pattern(path: str) -> bool:
    """Whether `path` has any of the characters `*`, `?` and `[`."""
    return re.search(r"[*?[]", path) is not None


def search_folder(folder: str) -> Search:
    """All shards in a folder and below."""
    return _run(Search(folder), EVERYTHING)


def _search_pattern(pattern: str) -> Search:
    parts = pattern.split(os.sep)
    first = next(index for index, part in enumerate(parts) if is_pattern(part))
    folder = os.sep.join(parts[:first]) or (os.sep if first else ".")
    if not os.path.isdir(folder):
        raise PilekitError(f"{visible(pattern)}: there is no folder {visible(folder)}; check the path")
    return _run(Search(folder), tuple(part for part in parts[first:] if part not in ("", ".")))


def _run(search: Search, pattern: tuple[str, ...]) -> Search:
    # Two `**` in one pattern reach a file in several ways: the path is the key.
    found = dict(_matching(search, search.root, pattern, search_below="**" not in pattern))
    cut = len(os.path.join(search.root, ""))
    search.files = [(path[cut:].replace(os.sep, "/"), path, size) for path, size in found.items()]
    search.ours = sorted(set(search.ours))
    return search


def _matching(
    search: Search,
    folder: str,
    pattern: tuple[str, ...],
    search_below: bool = False,
    entries: list[os.DirEntry[str]] | None = None,
) -> Iterator[tuple[str, int]]:
    """Shards below `folder` whose path matches `pattern`, one part of it per level; `**` is any number of levels.

    With `search_below`, folders that match the whole pattern are searched themselves.
    """
    if entries is None:
        entries = _entries(folder)
        if folder != search.root and any(entry.name == HEADER_FILE for entry in entries):
            search.ours.append(folder)
            return
    head, rest = pattern[0], pattern[1:]
    if head == "**":
        yield from _matching(search, folder, rest or ("*",), entries=entries)
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield from _matching(search, entry.path, pattern)
        return
    fits = re.compile(fnmatch.translate(head)).match
    for entry in entries:
        if (entry.name.startswith(".") and not head.startswith(".")) or not fits(entry.name):
            continue
        if entry.is_dir():
            if not entry.is_symlink() and (rest or search_below):
                yield from _matching(search, entry.path, rest or EVERYTHING, search_below and bool(rest))
        elif not rest and looks_like_shard(entry.name):
            status = _status(entry.path)
            if stat.S_ISREG(status.st_mode):  # a pipe would keep the reader waiting for ever
                yield entry.path, status.st_size


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise PilekitError(
            f"{visible(folder)}: the folder cannot be read ({error.strerror}); make it readable or name the shards"
        ) from error


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise PilekitError(f"{visible(path)}: cannot be read ({error.strerror}); is it a broken link?") from error
