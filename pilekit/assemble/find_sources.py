"""The sources of a manifest: which files belong to which subset, and what one process reads at a time.

A shard is a source by itself. Text files, each of them one document, are read in batches. A document's identity is the
path of its file relative to the manifest, without compression suffix for a shard, and its number in the file. So the
order and the spelling of patterns change nothing.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pilekit.corpus import Manifest, Shard, Subset, local, warn_of_left_out
from pilekit.corpus.shard import HELD_OUT, is_url, looks_like_shard, make_shard, split_of
from pilekit.errors import PilekitError
from pilekit.shards.fingerprint import Inputs, changed_at, fingerprint
from pilekit.shards.read.change_check import ShardChanged

FILES_AT_A_TIME, BYTES_AT_A_TIME = 4096, 64 << 20
"""A batch of text files ends at either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Shard):
    """A shard, whose name is its path relative to the manifest, or a batch of text files.

    subset   the place of its subset in the manifest
    files    (identity, path) of the shard or of each text file, in the order of the identities
    is_text  whether each file is one document
    """

    subset: int
    files: tuple[tuple[str, str], ...]
    is_text: bool

    def version(self) -> str:
        """A text that changes when a file is written again."""
        times = [changed_at(path) for _, path in self.files]
        return f"{self.size} {xxhash.xxh3_64_hexdigest(repr(times).encode())}"

    def check(self, inputs: Inputs) -> None:
        """Raise `ShardChanged` if the source, which was just read, has changed since the job began."""
        if self.version() != inputs.versions[self.name]:
            raise ShardChanged(f"{self.path}: was changed while it was read; run again")


def find_sources(manifest: Manifest, path: str | Path, out: Path) -> list[Source]:
    """The sources of all subsets in the order of their identities; `path` is the manifest's.

    Of a folder or glob, val and test shards among others are left out, with a warning.

    Raises PilekitError for a subset without sources, a pattern that finds nothing, and a file that is in two subsets or
    inside `out`.
    """
    folder, target = Path(path).parent, out.resolve()
    sources: list[Source] = []
    left_out: list[str] = []
    owners: dict[Path, str] = {}
    places: dict[str, Path] = {}
    resolved = functools.cache(lambda parent: Path(parent).resolve())
    for number, subset in enumerate(manifest.subsets):
        files: dict[str, tuple[str, int]] = {}
        for path, size in _files_of(subset, folder, left_out):
            parent, name = os.path.split(path)
            place = Path(path).resolve() if Path(path).is_symlink() else resolved(parent) / name
            if place.is_relative_to(target):
                raise PilekitError(f"{path}: lies in {out}; name another folder with --out")
            if (owner := owners.setdefault(place, subset.name)) != subset.name:
                raise PilekitError(
                    f"{path}: is a source of two subsets, {owner} and {subset.name}; give it to one of them"
                )
            identity = _identity(path, folder)
            if (first_place := places.setdefault(identity, place)) != place:
                raise PilekitError(
                    f"two sources have the name {identity}: {first_place.name} and {name}; "
                    "documents could not be told apart, so give only one of them"
                )
            files[identity] = path, size
        sources += _batched(number, files)
    if left_out:
        warn_of_left_out(_identity(path, folder) for path in left_out)
    return sorted(sources, key=lambda source: source.files[0])


def _identity(path: str, folder: Path) -> str:
    """The path relative to the manifest, without compression suffix for a shard; PilekitError if it is not UTF-8."""
    parent, slash, name = os.path.relpath(path, folder).replace(os.sep, "/").rpartition("/")
    shard = make_shard(name, path, None).name
    return parent + slash + (shard if looks_like_shard(name) else name)


def inputs_of(sources: Iterable[Source], manifest: Manifest) -> Inputs:
    """The fingerprints of the sources, with the settings that the first pass over them depends on."""
    inputs = Inputs({}, {})
    for source in sources:
        subset = manifest.subsets[source.subset]
        inputs.versions[source.name] = source.version()
        if source.is_text:
            sample = xxhash.xxh3_128_hexdigest(repr([identity for identity, _ in source.files]).encode())
        else:
            sample = fingerprint(source.path).sample
        text_field = subset.text_field or manifest.text_field
        inputs.fingerprints[source.name] = [source.size, sample, subset.name, text_field, subset.group]
    return inputs


def _files_of(subset: Subset, folder: Path, left_out: list[str]) -> Iterator[tuple[str, int]]:
    """(path, stored bytes) of each file that the subset's patterns find; a file may be found twice.

    `left_out` receives the paths of held-out shards among others.
    """
    if not subset.sources:
        raise PilekitError(f"the subset {subset.name} has no sources; name its files, folders or globs in the manifest")
    for pattern in subset.sources:
        if is_url(pattern):
            raise PilekitError(f"the subset {subset.name}: {pattern} is a URL; download it first")
        path = str(folder / Path(pattern).expanduser())
        try:
            search = local.search(path, every=True)
        except PilekitError as error:
            raise PilekitError(f"the subset {subset.name}, source {pattern}: {error}") from error
        named = Path(path)
        if named.exists() and not (named.is_file() or named.is_dir()):
            raise PilekitError(f"the subset {subset.name}: {pattern} is no file and cannot be read twice; copy it")
        # A folder gives its shards only, if it has any. Files that the pattern itself names or matches are all taken.
        depth = 0 if named.is_dir() else len(named.parts) - len(Path(search.root).parts)
        folders: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
        files: list[tuple[str, int]] = []
        for relative, file, size in search.files:
            parts = tuple(relative.split("/"))
            if "**" in pattern or len(parts) == depth:
                files.append((file, size or 0))
            else:
                folders[parts[:depth]].append((file, size or 0))
        for files_in_folder in folders.values():
            files += [file for file in files_in_folder if looks_like_shard(file[0])] or files_in_folder
        shards = ((relative, file) for relative, file, _ in search.files if looks_like_shard(file))
        held_out = {file for relative, file in shards if split_of(relative) in HELD_OUT}
        train = [file for file in files if file[0] not in held_out]
        left_out += [file for file, _ in files if train and file in held_out]
        yield from train or files
        if not search.files:
            ours = f"; {search.ours[0]} is a link or by pilekit, name it to read it" if search.ours else ""
            raise PilekitError(f"the subset {subset.name}: {pattern} finds no file{ours}")


def _batched(subset: int, files: dict[str, tuple[str, int]]) -> Iterator[Source]:
    batch: list[tuple[str, str]] = []
    held_bytes = 0
    for identity, (path, size) in (*sorted(files.items()), ("", ("", 0))):
        if batch and (not path or len(batch) == FILES_AT_A_TIME or held_bytes >= BYTES_AT_A_TIME):
            first, at = batch[0]
            name = f"text files from {first} on"
            yield Source(name, at, held_bytes, subset=subset, files=tuple(batch), is_text=True)
            batch, held_bytes = [], 0
        if looks_like_shard(path):
            yield Source(identity, path, size, subset=subset, files=((identity, path),), is_text=False)
        elif path:
            batch.append((identity, path))
            held_bytes += size
