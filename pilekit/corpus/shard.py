"""`Shard`: one stored file of a corpus, and how it gets its name and split.

A shard's name is half of a document's identity. It depends only on the file's path below the corpus root:
`/`-separated, without compression suffix. So recompressing a shard renames no document.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pilekit.corpus.sidecar_files import written_beside
from pilekit.errors import PilekitError

Split = Literal["train", "val", "test"]
HELD_OUT = ("val", "test")
"""The splits that are never read as train."""

SHARD_SUFFIXES = (".jsonl.zst", ".jsonl", ".jsonl.gz", ".json.zst", ".json.gz", ".parquet")
"""The endings of files that a search takes for shards; a file that the user names may have any ending."""

STANDARD_INPUT = "-"

COMPRESSION = (".zst", ".zstd", ".gz")
"""The endings that a shard's name does not have."""
FILE_SUFFIXES = (*SHARD_SUFFIXES, ".json", ".ndjson", *COMPRESSION)
"""The endings by which a URL is taken for a shard: HTTP does not distinguish files from folders."""
_SPLITS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a corpus.

    name    its identity: the path below the corpus root without compression suffix, e.g. `train/00.jsonl`
    path    a local path, a URL, or `-` for standard input
    size    stored bytes; None if unknown
    split   "train", "val" or "test": from its name or, if no shard's name has a split, from the root's; else None
    """

    name: str
    path: str
    size: int | None = None
    split: Split | None = None

    @property
    def absolute_path(self) -> str:
        """The path for any working folder; a URL stays as it is."""
        return self.path if is_url(self.path) else str(Path(self.path).absolute())


def is_url(path: str) -> bool:
    """Whether `path` is for fsspec (`s3://...`, `zip://a::b`) rather than a local file."""
    return "://" in path or "::" in path


def looks_like_shard(name: str) -> bool:
    """Whether a search of a folder takes a file of this name for a shard; `*.index.parquet` is an index."""
    return name.endswith(SHARD_SUFFIXES) and written_beside(name.rpartition("/")[2]) is None


def stem(shard: Shard) -> str:
    """The shard's name without the suffix of its storage."""
    if shard.path == STANDARD_INPUT:
        return "stdin"
    for suffix in (".jsonl", ".json", ".ndjson", ".parquet"):
        if shard.name.endswith(suffix):
            return shard.name.removesuffix(suffix)
    return shard.name


def check_stems(shards: Iterable[Shard]) -> None:
    """Raise PilekitError if two shards would be written into one file, which is named by the stem."""
    shard_of_stem: dict[str, Shard] = {}
    for shard in shards:
        earlier = shard_of_stem.setdefault(stem(shard), shard)
        if earlier is not shard:
            raise PilekitError(
                f"{earlier.path} and {shard.path} would both be written to {stem(shard)}; take one after the other"
            )


def shard_of(path: str) -> Shard:
    """The shard at one path or URL, which need not exist; its folder is the corpus root.

    Raises PilekitError for a folder, a file that pilekit writes beside shards, and a path that cannot be a name.
    """
    if path == STANDARD_INPUT:
        return Shard("(stdin)", path)
    if is_url(path):
        folder, _, name = without_query(path).partition("::")[0].rpartition("/")
        _refuse_beside(path, name)
        return with_split_of_root([make_shard(name or path, path, None)], folder)[0]
    folder, name = os.path.split(path)
    _refuse_beside(path, name)
    if path.endswith(os.sep) or Path(path).is_dir():
        raise PilekitError(f"{path}: is a folder, not a shard; name a file in it")
    try:
        size = Path(path).stat().st_size
    except (OSError, ValueError):  # ValueError: a null character
        size = None
    return with_split_of_root([make_shard(name, path, size)], folder)[0]


def make_shard(relative: str, path: str, size: int | None) -> Shard:
    """A shard from its path below the root; raises PilekitError for a path that cannot be a name."""
    parts = relative.split("/")
    if not relative or ".." in parts or "" in parts:
        raise PilekitError(f"{path}: {relative!r} cannot name a shard: names are relative and without '..'")
    try:
        relative.encode()
    except UnicodeEncodeError:
        raise PilekitError(f"{path}: its name is not valid UTF-8; rename it") from None
    for suffix in COMPRESSION:
        if relative.endswith(suffix) and len(parts[-1]) > len(suffix):
            relative = relative.removesuffix(suffix)
            break
    return Shard(relative, path, size, split_of(relative))


def split_of(name: str) -> Split | None:
    """The split of a shard by its name.

    A file called `val`, `valid`, `validation` or `test` is held out in any folder. Else the innermost folder called so,
    or `train`, decides. Else the file's name decides, if it holds exactly one of these words (`pile_val.jsonl`,
    `train-00001-of-00009.parquet`).
    """
    *folders, file = name.lower().split("/")
    if (called := _SPLITS.get(file.partition(".")[0], "train")) != "train":
        return called
    for folder in reversed(folders):
        if folder in _SPLITS:
            return _SPLITS[folder]
    splits = {_SPLITS[word] for word in re.split(r"[^a-z]+", file) if word in _SPLITS}
    return splits.pop() if len(splits) == 1 else None


def with_split_of_root(shards: Sequence[Shard], root: str) -> Sequence[Shard]:
    """`shards` with the split of the root's last folder, if no shard's name has a split.

    If some names do, as `val.jsonl` next to `00.jsonl`, the root may be called `test` by chance and is ignored.
    """
    place = next((part for part in root.split("::") if "://" in part), root)  # the first URL of `zip://a::s3://b`
    last_folder = place.replace(os.sep, "/").rstrip("/").rpartition("/")[2]
    split = _SPLITS.get(last_folder.lower())
    if split is None or any(shard.split for shard in shards):
        return shards
    return [replace(shard, split=split) for shard in shards]


def without_query(url: str) -> str:
    """A web URL without `?...` and `#...`; other URLs may have these characters in a file's name."""
    return re.split(r"[?#]", url, maxsplit=1)[0] if url.startswith(("http://", "https://")) else url


def _refuse_beside(path: str, name: str) -> None:
    if reason := written_beside(name):
        raise PilekitError(f"{path}: {reason}")
