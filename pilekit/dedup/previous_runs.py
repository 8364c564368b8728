"""The earlier runs that a corpus is deduplicated against: their sketches, masks and shards.

If an earlier run was itself made against another run, that run is included, and so on. Documents of earlier runs are
not sketched again. Candidates among them are read again from their shards, so the shards must be unchanged and in the
same place; this is checked before any work starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilekit.artifacts.header import finished_header
from pilekit.corpus import Shard
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import ShardSketch, load_sketch
from pilekit.errors import PilekitError, shortened
from pilekit.shards.fingerprint import unchanged_shard
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.keep_mask import KeepMask, read_mask

KIND, COMMAND = "dedup", "pilekit dedup"
"""The kind in the header of the folder that `dedup_corpus` makes, and the command."""

SKETCHES, MASKS = "sketches", "masks"

RECORDS, DONE = "/records", "/summary"
"""Names of the notes about the whole folder; no shard's name begins with a slash."""

_SAME = ("threshold", "keep", "ngram", "num_perm", "bands", "rows", "seed")
"""Parameters that must be equal, so that two runs in turn give the result of one run over both corpora."""


@dataclass(frozen=True)
class EarlierRun:
    """A finished run.

    shards       in corpus order, with the paths that the run read
    parameters   everything its result depends on in addition to the shards; `against` is the identity of the run before
    identity     a hash of parameters and shards
    against      folder of the run before
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
        """The keep mask of each shard."""
        return [read_mask(self.folder / MASKS / f"{shard.name}{MASK_SUFFIX}") for shard in self.shards]


def earlier_runs(folder: str | Path, parameters: Mapping[str, Any]) -> list[EarlierRun]:
    """The run in `folder`, last, and the runs that it was made against, in their order.

    PilekitError if one is not finished, cannot be compared with a run with `parameters`, or has lost a shard.
    """
    last = finished_run(folder)
    runs = [*runs_before(last), last]
    for run in runs:
        _check_comparable(run, parameters)
    return runs


def runs_before(run: EarlierRun) -> list[EarlierRun]:
    """The runs that a run was made against, the first one first; PilekitError if one is gone or has changed."""
    runs: list[EarlierRun] = []
    while run.against is not None:
        try:
            before = finished_run(run.against)
        except PilekitError as error:
            raise PilekitError(f"{run.folder}: was made against an earlier run that cannot be used: {error}") from error
        # A run's identity contains that of the run before, so this ends.
        if before.identity != run.parameters["against"]:
            raise PilekitError(f"{run.against}: has changed since {run.folder} was made against it; restore it")
        runs.insert(0, before)
        run = before
    return runs


def finished_run(folder: str | Path) -> EarlierRun:
    """The run in `folder`; PilekitError if it is not finished, or if one of its shards is gone or changed."""
    folder = Path(folder)
    header = finished_header(folder, KIND, COMMAND)
    try:
        paths = {name: header.results[name]["result"]["path"] for name in sorted(header.inputs)}
        against = header.results[DONE]["result"]["against"]
    except (KeyError, TypeError) as error:
        raise PilekitError(f"{folder}: its header is damaged: it has no {error}") from error
    shards = [unchanged_shard(folder, name, path, header.inputs[name]) for name, path in paths.items()]
    return EarlierRun(folder, shards, header.parameters, header.identity, against)


def _check_comparable(run: EarlierRun, parameters: Mapping[str, Any]) -> None:
    shown = run.folder
    for name in _SAME:
        there, here = run.parameters.get(name), parameters[name]
        if there != here:
            raise PilekitError(
                f"{shown}: was made with {name} {shortened(str(there), 80)}, now it is {here}; use the same threshold, "
                "keep, n-grams and permutations for both"
            )
    compared: list[str] | None = run.parameters.get("subsets")
    subsets: list[str] | None = parameters["subsets"]
    if compared is not None and (subsets is None or not set(subsets) <= set(compared)):
        raise PilekitError(
            f"{shown}: was made with subsets {shortened(', '.join(compared), 200)}, now they are "
            f"{'all' if subsets is None else shortened(', '.join(subsets), 200)}; name no others, or run that one with "
            "these too"
        )
