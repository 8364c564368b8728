"""`RecordedCopies`: the copies of scored documents that a finished dedup has recorded.

A cluster is a kept document and those that were removed because they resemble it, exact and near copies. Each document
of it has as many copies as the cluster has documents, itself included. The table of removed documents is read twice,
some rows at a time, and memory holds a few numbers for each scored document and each copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset

from pilekit.artifacts.header import finished_header
from pilekit.corpus.shuffle import Int64
from pilekit.dedup.previous_runs import COMMAND, KIND
from pilekit.dedup.result import REMOVED
from pilekit.dedup.show.removed_pairs import removals
from pilekit.errors import PilekitError
from pilekit.evaluate.results.records import Records
from pilekit.exposure.shard_keys import Contents, ShardKeys, common_shards, places_in

_REMEDY = f"run `{COMMAND}` on these shards"
_COLUMNS = ["shard", "number", "kept_shard", "kept_number"]


@dataclass(frozen=True)
class Clusters:
    """Scored documents together with their copies.

    cluster   of each scored document, int64 [documents]
    members   the keys of all documents of these clusters, increasing, int64 [members]
    owner     the cluster of each member, int64 [members]
    sizes     documents in each cluster, int64 [clusters]
    """

    cluster: Int64
    members: Int64
    owner: Int64
    sizes: Int64

    @classmethod
    def single(cls, keys: Int64) -> Clusters:
        """Each scored document, by its key, alone in a cluster."""
        members, cluster = np.unique(keys, return_inverse=True)
        return cls(cluster, members, np.arange(len(members)), np.ones(len(members), np.int64))


@dataclass(frozen=True)
class RecordedCopies:
    """A finished dedup of scored documents.

    shards      the contents of the shards that it has read
    common      the names of the scored shards among them
    threshold   the least similarity of near copies
    subsets     the subsets whose documents were compared; None: all
    """

    folder: Path
    shards: Contents
    common: list[str]
    threshold: float
    subsets: list[str] | None

    @classmethod
    def of(cls, folder: str | Path, scored: Contents) -> RecordedCopies:
        """The dedup in a folder; PilekitError if it is of other shards, or has not all copies."""
        header = finished_header(folder, KIND, COMMAND)
        parameters = header.parameters
        if parameters.get("against") is not None:
            raise PilekitError(
                f"{folder}: was made against an earlier dedup, so it has not all copies; run `{COMMAND}` on all shards "
                "at once, and give that folder"
            )
        shards: Contents = {name: (size, sample) for name, (size, sample) in header.inputs.items()}
        common = common_shards(scored, shards, f"{folder}: is no dedup of the scored data: it", _REMEDY)
        return cls(Path(folder), shards, common, parameters["threshold"], parameters.get("subsets"))

    def protocol(self, scored: Contents) -> dict[str, Any]:
        """What the figures depend on, as JSON types."""
        unread = [name for name in scored if name not in self.common]
        return {
            "folder": str(self.folder),
            "threshold": self.threshold,
            "subsets": self.subsets,
            "not_compared": unread,
        }

    def is_compared(self, records: Records) -> npt.NDArray[np.bool_]:
        """Whether the dedup has compared each scored document, bool [documents]."""
        shards, subsets = set(self.common), None if self.subsets is None else set(self.subsets)
        of_shard = np.array([name in shards for name in records.shards])
        of_subset = np.array([subsets is None or name in subsets for name in records.subsets])
        compared: npt.NDArray[np.bool_] = of_shard[records.shard] & of_subset[records.subset]
        return compared

    def clusters(self, keys: Int64, make: ShardKeys) -> Clusters:
        """The clusters of scored documents, by their keys; a document without a recorded copy is alone in one."""
        documents, place = np.unique(keys, return_inverse=True)
        kept = documents.copy()
        with removals(self.folder / REMOVED) as table:
            for removed, keeper in self._pairs(table, make):
                at = places_in(documents, removed)
                kept[at[at >= 0]] = keeper[at >= 0]
            heads, cluster = np.unique(kept, return_inverse=True)
            members, owner = [heads], [np.arange(len(heads))]
            for removed, keeper in self._pairs(table, make):
                at = places_in(heads, keeper)
                members.append(removed[at >= 0])
                owner.append(at[at >= 0])
        owners = np.concatenate(owner)
        keys_of_members, first = np.unique(np.concatenate(members), return_index=True)
        return Clusters(cluster[place], keys_of_members, owners[first], np.bincount(owners))

    def _pairs(self, table: pa.dataset.Dataset, make: ShardKeys) -> Iterator[tuple[Int64, Int64]]:
        """(keys of removed documents, keys of the kept one of each), some at a time."""
        for batch in table.to_batches(columns=_COLUMNS):
            shard, number, kept_shard, kept_number = (batch[name] for name in _COLUMNS)
            yield make.listed(shard, number, self.shards), make.listed(kept_shard, kept_number, self.shards)
