"""`DocumentSelection`: the documents that a stream reads, for any number of lanes.

It makes the `LaneSource` of either plan for a grid. It also computes a grid's default size, the lanes' first places,
and the fingerprint of the documents.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from pilekit.artifacts.header import read_header
from pilekit.corpus import UNLABELLED, Corpus
from pilekit.corpus.shard import is_url
from pilekit.dedup.previous_runs import KIND
from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.errors import PilekitError, visible
from pilekit.pipeline import Pipeline, Stage
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.read.open import is_parquet
from pilekit.shards.read.reader import OnError
from pilekit.shards.read.unchanged import version_of
from pilekit.stream.order.lane_grid import COLUMNS, default_rows
from pilekit.stream.order.repeats import copies
from pilekit.stream.order.selection import Selection
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.order.unit_sequence import Sequence as UnitSequence
from pilekit.stream.read import sequential
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.read.plan import Plan
from pilekit.stream.read.random_access import RandomAccess

logger = logging.getLogger(__name__)

OTHER = "(other)"
"""The subset of documents whose label is not in the stream's `subset_names`."""

_MOST_IN_UNIT = 256
_UNITS_PER_LANE = 16


@dataclass(frozen=True)
class DocumentSelection:
    """The documents of a stream.

    subsets    exact names; None: all
    repeats    factors that are not 1, by exact name
    filters    document stages
    dedup      folder of a finished dedup
    records    give the documents' records too
    cache      the cache of remote shards' frames
    selection  under random access: the selected documents
    versions   under the sequential plan: the versions of the shards when the stream was made
    """

    corpus: Corpus
    plan: Plan
    subsets: tuple[str, ...] | None
    repeats: Mapping[str, float]
    filters: tuple[Stage, ...]
    dedup: Path | None
    seed: int
    shuffle: bool
    on_error: OnError
    records: bool
    cache: FrameCache | None = None
    selection: Selection | None = field(init=False, default=None)
    versions: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.cache is not None:
            self._check_cached()
        if self.plan.name == "sequential":
            object.__setattr__(self, "versions", tuple(version_of(shard.path) for shard in self.corpus.shards))
        else:
            dropped = [name for name, factor in self.repeats.items() if factor == 0]
            selection = Selection(self.corpus, self.plan.indexes, self.subsets, dropped, self.dedup)
            object.__setattr__(self, "selection", selection)
            for shard, index in zip(self.corpus.shards, self.plan.indexes, strict=True):
                if index.header.skipped:
                    line, reason = index.header.examples[0]
                    logger.warning(
                        "%s: %s bad line%s left out, the first: line %s: %s",
                        *(visible(shard.path), f"{index.header.skipped:,}", "s" * (index.header.skipped > 1)),
                        *(f"{line:,}", visible(reason, 200)),
                    )

    def _check_cached(self) -> None:
        remote = [shard for shard in self.corpus.shards if is_url(shard.path)]
        if remote and self.plan.name == "sequential":
            raise PilekitError(
                f"cache= keeps frames that are reached at random, but {self.plan.reason}; put what `pilekit reframe` "
                "makes of the shards in their place, or leave out cache="
            )
        if fetched := [shard for shard in remote if is_parquet(shard.path)]:
            logger.warning("%s: Parquet is fetched each time: cache= keeps frames of lines", visible(fetched[0].path))

    def default_lanes(self, global_batch_size: int, world_size: int) -> tuple[int, int]:
        """(R, M) of a new run."""
        if self.selection is None:
            return sequential.default_grid(len(self.corpus.shards), world_size)
        return default_rows(global_batch_size, world_size), COLUMNS

    def default_unit(self, lanes: int) -> int:
        """Documents in a unit of a new run; 1 under the sequential plan, whose units are shards."""
        if self.selection is None:
            return 1
        return max(1, min(_MOST_IN_UNIT, len(self.selection) // (_UNITS_PER_LANE * lanes)))

    def per_epoch(self, unit: int) -> int:
        """Positions in an epoch, of all lanes together. Under the sequential plan: per shard of a lane."""
        return self.copies * (1 if self.selection is None else -(-len(self.selection) // unit))

    def positions(self, unit: int) -> int:
        """Positions in an epoch of a stream with one lane."""
        return self.per_epoch(unit) * (len(self.corpus.shards) if self.selection is None else 1)

    @property
    def copies(self) -> int:
        """Copies of each unit per epoch."""
        return copies(self.repeats, self.subsets)

    def source(self, lanes: int, unit: int, end: int | None = None) -> LaneSource:
        """The source of a grid's lanes; `end`: the position at which they end, for a finite pass."""
        if self.selection is None:
            return sequential.Sequential(self, lanes, end)
        units = UnitSequence(len(self.selection), unit, self.copies, self.seed, lanes, self.shuffle)
        return RandomAccess(self, self.selection, units, end)

    def first(self, lanes: int) -> Int64:
        """The places at which all lanes begin, int64 [L, 3]."""
        places = np.zeros((lanes, 3), np.int64)
        if self.selection is not None:
            places[:, 0] = np.arange(lanes)
        return places

    def moved(self, places: Int64, old_per_epoch: int, unit: int) -> Int64:
        """`places`, int64 [L, 3], for changed subsets or repeats: equally far in the epoch, at a window's start."""
        new = self.per_epoch(unit)
        moved = places.copy()
        moved[:, 2] = 0
        if new != old_per_epoch:
            lanes = len(places)
            first, stride = (0, 1) if self.selection is None else (np.arange(lanes), lanes)
            moved[:, 0] = first + stride * ((places[:, 0] - first) // stride * new // old_per_epoch)
            moved[:, 1] = 0
        return moved

    def subset_names(self) -> tuple[str, ...]:
        """The names behind subset ids: the manifest's names, other labels sorted by name, and `(other)` for the rest.

        They are the same for every rank. Other labels come from `subsets` if given, else from the shards' indexes.
        Without indexes (sequential plan) only `(none)` and the names in `repeats` are known.
        """
        listed = [subset.name for subset in self.corpus.manifest.subsets]
        if self.subsets is not None:
            found = set(self.subsets)
        elif self.selection is not None:
            found = {label for index in self.plan.indexes for label in index.header.subsets}
        else:
            found = {UNLABELLED, *self.repeats}
        if len(found.difference(listed)) > MAX_SUBSETS:
            raise too_many_subsets(MAX_SUBSETS)
        return (*listed, *sorted(found.difference(listed)), OTHER)

    def fingerprint(self) -> dict[str, object]:
        """The identity of the documents and of their order, without the plan; JSON types."""
        manifest = self.corpus.manifest
        content: object = [[shard.name, shard.size] for shard in self.corpus.shards]
        if self.selection is not None:
            content = self.selection.fingerprint
        dedup = None
        if self.dedup is not None:
            header = read_header(self.dedup, KIND)
            dedup = _hash([header.parameters, header.inputs])
        return {
            "shards": {"count": len(self.corpus.shards), "content": _hash(content)},
            "record": {"text_field": manifest.text_field, "label_path": manifest.label_path},
            "subset_names": _hash([subset.name for subset in manifest.subsets]),
            "filters": [_without_address(repr(stage)) for stage in self.filters],
            "dedup": dedup,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "subsets": None if self.subsets is None else sorted(self.subsets),
            "repeats": dict(self.repeats),
        }


def checked_filters(filters: Sequence[Stage]) -> tuple[Stage, ...]:
    """`filters` as a tuple; PilekitError if it is no list of document stages, or if a stage is stateful."""
    chain = Pipeline(filters)
    if chain.stateful:
        raise PilekitError(
            f"filters={visible(repr(list(chain.stages)), 200)}: a stage's answer depends on what it saw before, and a "
            "stream's documents are read by many processes; run `pilekit dedup` and give dedup=FOLDER"
        )
    return tuple(chain.stages)


def _hash(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(value, order="sorted"))


def _without_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)
