"""Search for shards in the local file system: one walk serves folders and globs.

A folder is the glob `folder/**/*`. `os.scandir` returns entries that know their kind without another system call, so
a folder of 100,000 files is listed in a fraction of a second.
"""

# A Path for each entry would take most of the time
# ruff: noqa: PTH112, PTH114, PTH116, PTH118, PTH206

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pilekit.artifacts.atomic_write import PARTIAL
from pilekit.artifacts.header import HEADER_FILE
from pilekit.artifacts.own_file import read_own
from pilekit.corpus.job_shards import folder_of_shards
from pilekit.corpus.shard import looks_like_shard
from pilekit.corpus.sidecar_files import holds_ids, written_beside
from pilekit.errors import PilekitError


@dataclass
class Search:
    """The result of a search.

    files   (path below the root, path, stored bytes) of each shard
    ours    folders that were skipped because pilekit wrote them or they are links
    every   whether other files are found too, except those that pilekit writes beside shards
    """

    root: str
    files: list[tuple[str, str, int | None]] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    every: bool = False


def search(source: str, *, every: bool = False) -> Search:
    """Shards (or `every` file) at a path or glob; raises PilekitError if it does not exist or cannot be read."""
    if os.path.isdir(source):
        return search_folder(source, every=every)
    if os.path.lexists(source):
        folder, name = os.path.split(source)
        return Search(folder or ".", [(name, source, _status(source).st_size)])
    if is_pattern(source):
        return _search_pattern(source, every)
    raise PilekitError(f"{source}: no such file or folder; check the path")


def search_folder(folder: str, *, every: bool = False) -> Search:
    """All shards (or `every` file) in a folder and below; of a folder that a job of pilekit wrote, its shards."""
    header = os.path.join(folder, HEADER_FILE)
    if os.path.lexists(header):
        try:
            encoded = read_own(header)
        except OSError as error:
            raise PilekitError(f"{header}: cannot be read: {error.strerror}") from error
        if inner := folder_of_shards(folder, encoded):
            folder = os.path.join(folder, inner)
            if not os.path.lexists(folder):
                raise PilekitError(f"{folder}: is gone; run the command that wrote it again")
            if os.path.islink(folder):
                raise PilekitError(f"{folder}: is a link and is not searched; name it to read it")
    search = Search(folder, every=every)
    _walk(search, folder, (), ("**", "*"))
    return search


def is_pattern(path: str) -> bool:
    """Whether the path is a glob."""
    return re.search(r"[*?[]", path) is not None


def _search_pattern(pattern: str, every: bool) -> Search:
    parts = pattern.split(os.sep)
    first = next(index for index, part in enumerate(parts) if is_pattern(part))
    folder = os.sep.join(parts[:first]) or (os.sep if first else ".")
    if not os.path.isdir(folder):
        raise PilekitError(f"{pattern}: there is no folder {folder}; check the path")
    heads = tuple(part for part in parts[first:] if part not in ("", "."))
    search = Search(folder, every=every)
    _walk(search, folder, (), (*heads, "*") if heads[-1] == "**" else heads)
    return search


def _walk(search: Search, folder: str, parts: tuple[str, ...], pattern: tuple[str, ...]) -> None:
    """Add the shards in and below `folder`, whose path below the root is `parts`, that match the pattern.

    Skips symlinked folders, folders that pilekit wrote (unless it is the root), and folders that cannot match.
    """
    entries = list(_entries(folder))
    if parts and any(entry.name == HEADER_FILE for entry in entries):
        search.ours.append(folder)
        return
    for entry in entries:
        path = (*parts, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if _may_contain(entry.name, len(parts), pattern):
                _walk(search, entry.path, path, pattern)
        elif entry.is_symlink() and os.path.isdir(entry.path):
            search.ours += [entry.path] * _may_contain(entry.name, len(parts), pattern)
        elif _is_input(entry.name, search.every) and _matches(path, pattern) and not holds_ids(folder, entry.name):
            status = _status(entry.path)
            if stat.S_ISREG(status.st_mode):  # a pipe would block the reader
                search.files.append(("/".join(path), entry.path, status.st_size))


def _is_input(name: str, every: bool) -> bool:
    return looks_like_shard(name) or (every and written_beside(name) is None and not name.endswith(PARTIAL))


def _may_contain(name: str, depth: int, pattern: tuple[str, ...]) -> bool:
    """Whether a folder with this name, at this depth below the root, may contain matches."""
    anything = depth >= len(pattern) or "**" in pattern[: depth + 1]
    return _fits(name, "*" if anything else pattern[depth])


def _matches(path: Sequence[str], pattern: tuple[str, ...]) -> bool:
    """Whether a file matches; without `**` in the pattern, a matching folder stands for all files below it."""
    return _glob(path, pattern) or ("**" not in pattern and _glob(path, (*pattern, "**", "*")))


def _glob(path: Sequence[str], pattern: tuple[str, ...]) -> bool:
    if not path or not pattern:
        return not path and not pattern
    if pattern[0] == "**" and (_glob(path, pattern[1:]) or (_fits(path[0], "*") and _glob(path[1:], pattern))):
        return True
    return pattern[0] != "**" and _fits(path[0], pattern[0]) and _glob(path[1:], pattern[1:])


def _fits(name: str, head: str) -> bool:
    """Whether a name matches one part of a pattern; hidden names match only a part that begins with a dot."""
    return fnmatch.fnmatchcase(name, head) and (head.startswith(".") or not name.startswith("."))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise PilekitError(
            f"{folder}: the folder cannot be read ({error.strerror}); make it readable or name the shards"
        ) from error


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read ({error.strerror}); is it a broken link?") from error
