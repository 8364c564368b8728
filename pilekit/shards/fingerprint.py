"""Whether a file is still the one that something was made from, told without reading it whole.

Its size, and a hash of 16 pieces spread evenly over it, the first and the last bytes among them: a quarter of a MiB of
any file, whole files below that. What replaces a file (another download, another compression, another corpus) differs
in that; a bit that flips somewhere inside does not, and is what `pilekit verify` is for. What is edited in place shows
in its time of change, which is no part of the fingerprint, as a copy has another one (see index.py).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pilekit.corpus.shard import STANDARD_INPUT, Shard, is_url
from pilekit.errors import PilekitError, visible
from pilekit.shards.read.damage import ShardDamage
from pilekit.shards.read.open import open_stored
from pilekit.shards.read.unchanged import check_version, version_of

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
        raise PilekitError("standard input (-) cannot be read again, so nothing fits it; save it to a file first")
    file, _ = open_stored(path, scattered=True)
    hash = xxhash.xxh3_128()
    try:
        with file:
            size = file.seek(0, 2)
            last = max(0, size - PIECE_BYTES)
            for offset in sorted({last * piece // (PIECES - 1) for piece in range(PIECES)}):
                file.seek(offset)
                hash.update(file.read(PIECE_BYTES))
    except ShardDamage as damage:
        raise PilekitError(f"{visible(path)}: {damage.reason} (byte {damage.byte:,} of the file)") from damage
    return Fingerprint(size, hash.hexdigest())


def changed_at(path: str) -> int:
    """When a local file was last changed, in nanoseconds; 0 where that is not known."""
    try:
        return 0 if is_url(path) else os.stat(path).st_mtime_ns  # noqa: PTH116 (a path as it was given)
    except OSError:
        return 0


@dataclass(frozen=True)
class Inputs:
    """What a job reads, by the shard's name.

    fingerprints   size and sample, by which a copy is known too
    versions       as `version_of` gives them
    """

    fingerprints: dict[str, Any]
    versions: dict[str, str]

    def check(self, shard: Shard) -> None:
        """Raise `ShardChanged` if the shard, which was read just now, is not the one that the job began with."""
        check_version(shard.path, self.versions[shard.name])


def inputs_for(folder: str | Path, shards: Iterable[Shard]) -> Inputs:
    """The inputs of a job that reads `shards` and writes into `folder`.

    Raises PilekitError for a shard that lies in `folder`, where it could be overwritten.
    """
    inputs = Inputs({}, {})
    for shard in shards:
        inputs.versions[shard.name] = version_of(shard.path)
        if shard.path == STANDARD_INPUT:  # never the same again
            inputs.fingerprints[shard.name] = [0, secrets.token_hex(16)]
            continue
        if not is_url(shard.path) and Path(shard.path).resolve().is_relative_to(Path(folder).resolve()):
            raise PilekitError(
                f"{visible(str(folder))}: holds {visible(shard.path)}, which is to be read; name another folder with "
                "--out"
            )
        found = fingerprint(shard.path)
        inputs.fingerprints[shard.name] = [found.size, found.sample]
    return inputs
