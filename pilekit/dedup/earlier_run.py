"""An earlier run, against which another corpus is deduplicated: its sketches, its masks, its shards.

Its documents are not sketched again. Candidates among them are read again from its shards, so those must be where they
were, and as they were; that is checked before any work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pilekit.corpus import Shard, read_header
from pilekit.dedup.sketch_file import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch_file import ShardSketch, load_sketch
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.keep_masks import SUFFIX as MASK_SUFFIX
from pilekit.shards.keep_masks import KeepMask, read_mask

KIND = "dedup"
"""The kind in the header of the folder that `deduplicate` makes."""

SKETCHES, MASKS = "sketches", "masks"

_SAME = ("ngram", "bands", "rows", "num_perm", "seed")
"""What two runs must agree in for their sketches to be compared."""


@dataclass(frozen=True)
class EarlierRun:
    """A finished run.

    shards     those it read, where it read them, in corpus order
    identity   a hash of all that its result hangs on
    """

    folder: Path
    shards: list[Shard]
    identity: str

    def sketches(self) -> list[ShardSketch]:
        """The sketch of each shard."""
        return [load_sketch(self.folder / SKETCHES / f"{shard.name}{SKETCH_SUFFIX}") for shard in self.shards]

    def masks(self) -> list[KeepMask]:
        """What it kept of each shard."""
        return [read_mask(self.folder / MASKS / f"{shard.name}{MASK_SUFFIX}") for shard in self.shards]


def earlier_run(folder: str | Path, parameters: Mapping[str, Any]) -> EarlierRun:
    """The run in `folder`; `parameters` are those of the run that is to be compared with it.

    Raises PilekitError if it is not finished, was made with parameters that make other sketches, or if one of its
    shards is gone or changed.
    """
    folder = Path(folder)
    shown = visible(str(folder))
    header = read_header(folder, KIND)
    if not header.finished:
        raise PilekitError(f"{shown}: is not finished; run that deduplication to its end first")
    for name in _SAME:
        there, here = header.parameters.get(name), parameters[name]
        if there != here:
            raise PilekitError(
                f"{shown}: was made with {name} {visible(str(there), 80)}, now it is {here}; use the same threshold, "
                "n-grams and permutations for both"
            )
    shards = []
    for name, made_of in header.inputs.items():
        try:
            path = header.results[name]["result"]["path"]
            before = Fingerprint(*made_of)
        except (KeyError, TypeError) as error:
            raise PilekitError(f"{shown}: does not say where its shard {visible(name)} is") from error
        shard = Shard(name, path, before.size)
        try:
            now = fingerprint(path)
        except PilekitError as error:
            raise PilekitError(f"{shown}: its shard {visible(name)} is not where it was: {error}") from error
        if now != before:
            raise PilekitError(
                f"{visible(path)}: is not the shard any more that {shown} was made from; bring that one back"
            )
        shards.append(shard)
    shards.sort(key=lambda shard: shard.name)
    identity = xxhash.xxh3_128_hexdigest(msgspec.json.encode([header.parameters, header.inputs], order="sorted"))
    return EarlierRun(folder, shards, identity)
