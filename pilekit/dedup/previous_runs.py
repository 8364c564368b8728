"""Earlier runs, against which another corpus is deduplicated: their sketches, their masks, their shards.

A run that was made against another one brings that one along, and so on: what is compared with it is compared with all
that came before. Their documents are not sketched again. Candidates among them are read again from their shards, so
those must be where they were, and as they were; that is checked before any work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pilekit.artifacts.header import Header, read_header
from pilekit.corpus import Shard
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import ShardSketch, load_sketch
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Fingerprint, fingerprint
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.keep_mask import KeepMask, read_mask

KIND = "dedup"
"""The kind in the header of the folder that `deduplicate` makes."""

SKETCHES, MASKS = "sketches", "masks"

RECORDS, DONE = "/records", "/summary"
"""What is noted of the folder as a whole. No shard has a name that begins so."""

_SAME = ("threshold", "keep", "ngram", "num_perm", "bands", "rows", "seed")
"""What two runs must agree in to be one after the other what they would be together."""


@dataclass(frozen=True)
class EarlierRun:
    """A finished run.

    shards       those it read, where it read them, in corpus order
    parameters   all that its result hangs on beside the shards; `against` is the identity of the run before, or None
    identity     a hash of parameters and shards
    against      where the run before was
    """

    folder: Path
    shards: list[Shard]
    parameters: dict[str, Any]
    identity: str
    against: str | None

    def sketches(self) -> list[ShardSketch]:
        """The sketch of each shard."""
        return [load_sketch(self.folder / SKETCHES / f"{shard.name}{SKETCH_SUFFIX}") for shard in self.shards]

    def masks(self) -> list[KeepMask]:
        """What it kept of each shard."""
        return [read_mask(self.folder / MASKS / f"{shard.name}{MASK_SUFFIX}") for shard in self.shards]


def earlier_runs(folder: str | Path, parameters: Mapping[str, Any]) -> list[EarlierRun]:
    """The run in `folder`, last, and before it those that it was made against, in their order.

    Raises PilekitError if one is not finished, if its result cannot be compared with that of a run with `parameters`,
    or if one of its shards is gone or changed.
    """
    last = finished_run(folder)
    runs = [*runs_before(last), last]
    for run in runs:
        _check_comparable(run, parameters)
    return runs


def runs_before(run: EarlierRun) -> list[EarlierRun]:
    """Those that a run was made against, the first one first; PilekitError if one is gone or is another by now."""
    found: list[EarlierRun] = []
    while run.against is not None:
        try:
            before = finished_run(run.against)
        except PilekitError as error:
            raise PilekitError(
                f"{visible(str(run.folder))}: was made against an earlier run that cannot be used: {error}"
            ) from error
        # A run's identity is made of that of the run before, so there is no going round in circles.
        if before.identity != run.parameters["against"]:
            raise PilekitError(
                f"{visible(run.against)}: is not the run any more that {visible(str(run.folder))} was made against; "
                "bring that one back"
            )
        found.insert(0, before)
        run = before
    return found


def finished_run(folder: str | Path) -> EarlierRun:
    """The run in `folder`; PilekitError if it is not finished, or if one of its shards is gone or changed."""
    folder = Path(folder)
    shown = visible(str(folder))
    header = read_header(folder, KIND)
    check_finished(folder, header)
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
    against = None
    if header.parameters.get("against") is not None:
        try:
            against = str(header.results[DONE]["result"]["against"])
        except (KeyError, TypeError) as error:
            raise PilekitError(f"{shown}: does not say which run it was made against") from error
    identity = xxhash.xxh3_128_hexdigest(msgspec.json.encode([header.parameters, header.inputs], order="sorted"))
    return EarlierRun(folder, shards, header.parameters, identity, against)


def check_finished(folder: str | Path, header: Header) -> None:
    """Raise PilekitError if the run in `folder` is not finished."""
    if not header.finished:
        raise PilekitError(
            f"{visible(str(folder))}: is not finished; run the same `pilekit dedup` again, and it goes on"
        )


def _check_comparable(run: EarlierRun, parameters: Mapping[str, Any]) -> None:
    shown = visible(str(run.folder))
    for name in _SAME:
        there, here = run.parameters.get(name), parameters[name]
        if there != here:
            raise PilekitError(
                f"{shown}: was made with {name} {visible(str(there), 80)}, now it is {here}; use the same threshold, "
                "keep, n-grams and permutations for both"
            )
    compared: list[str] | None = run.parameters.get("subsets")
    wanted: list[str] | None = parameters["subsets"]
    if compared is not None and (wanted is None or not set(wanted) <= set(compared)):
        raise PilekitError(
            f"{shown}: was made with subsets {visible(', '.join(compared), 200)}, now they are "
            f"{'all' if wanted is None else visible(', '.join(wanted), 200)}; name no others, or run that one with "
            "these too"
        )
