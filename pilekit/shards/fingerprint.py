"""The fingerprint of a file shows whether it is still the same file, without reading it whole.

It is the file's size and a hash of 16 pieces spread evenly over the file, the first and the last bytes included: a
quarter of a MiB in all, or the whole of a small file. A replaced file (another download, compression or corpus) has
another fingerprint. A bit that flips between the pieces does not show; `pilekit verify` finds it. An edit in place
shows in the file's modification time, which is not part of the fingerprint because a copy has another one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pilekit.corpus.shard import STANDARD_INPUT, Shard, is_url
from pilekit.errors import PilekitError
from pilekit.shards.read.change_check import check_version, version_of
from pilekit.shards.read.open import open_file
from pilekit.shards.read.read_errors import ShardDamage

PIECES = 16
PIECE_BYTES = 16 << 10


@dataclass(frozen=True)
class Fingerprint:
    """The size of a file in bytes, and the xxh3_128 of its sampled pieces in hexadecimal."""

    size: int
    sample: str


def fingerprint(path: str) -> Fingerprint:
    """The fingerprint of a shard at a local path or URL; `PilekitError` if it cannot be read."""
    if path == STANDARD_INPUT:
        raise PilekitError("standard input (-) cannot be read again, so it has no fingerprint; save it to a file first")
    file = open_file(path, scattered=True)
    hash = xxhash.xxh3_128()
    try:
        with file:
            size = file.seek(0, 2)
            last = max(0, size - PIECE_BYTES)
            for offset in sorted({last * piece // (PIECES - 1) for piece in range(PIECES)}):
                file.seek(offset)
                hash.update(file.read(PIECE_BYTES))
    except ShardDamage as damage:
        raise PilekitError(f"{path}: {damage.reason} (byte {damage.byte:,} of the file)") from damage
    return Fingerprint(size, hash.hexdigest())


def unchanged_shard(folder: str | Path, name: str, path: str, before: Sequence[Any]) -> Shard:
    """The shard that a run read at `path`; PilekitError if it is gone or changed since the run made `folder`.

    before   size and sample of its fingerprint, from the folder's header
    """
    try:
        now = fingerprint(path)
    except PilekitError as error:
        raise PilekitError(f"{folder}: its shard {name} is not where it was: {error}") from error
    if now != Fingerprint(*before):
        raise PilekitError(f"{path}: has changed since {folder} was made from it; restore it")
    return Shard(name, path, now.size)


def changed_at(path: str) -> int:
    """The modification time of a local file in nanoseconds; 0 if unknown."""
    try:
        return 0 if is_url(path) else os.stat(path).st_mtime_ns  # noqa: PTH116 (a path as it was given)
    except OSError:
        return 0


@dataclass(frozen=True)
class Inputs:
    """The shards that a job reads, by name.

    fingerprints   size and sample of each shard; a copy has the same
    versions       the result of `version_of` for each shard
    """

    fingerprints: dict[str, Any]
    versions: dict[str, str]

    def check(self, shard: Shard) -> None:
        """Raise `ShardChanged` if the shard, which was just read, has changed since the job began."""
        check_version(shard.path, self.versions[shard.name])


def inputs_for(folder: str | Path, shards: Iterable[Shard]) -> Inputs:
    """The inputs of a job that reads `shards` and writes into `folder`.

    Raises PilekitError for a shard inside `folder`, where the job could overwrite it.
    """
    inputs = Inputs({}, {})
    for shard in shards:
        inputs.versions[shard.name] = version_of(shard.path)
        if shard.path == STANDARD_INPUT:  # never the same again
            inputs.fingerprints[shard.name] = [0, secrets.token_hex(16)]
            continue
        if not is_url(shard.path) and Path(shard.path).resolve().is_relative_to(Path(folder).resolve()):
            raise PilekitError(f"{folder}: holds {shard.path}, which is to be read; name another folder with --out")
        size_and_sample = fingerprint(shard.path)
        inputs.fingerprints[shard.name] = [size_and_sample.size, size_and_sample.sample]
    return inputs
