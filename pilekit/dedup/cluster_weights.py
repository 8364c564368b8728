"""`ClusterWeights`: how often a document that a dedup kept is used, by the number of its copies.

A cluster is a kept document and all documents that were removed because they resemble it, exact and near copies. With
s documents in its cluster, a kept document counts min(s^copies, copies_max) times. With copies=0 each counts once, with
1 as often as its cluster stands in the corpus, and numbers between let frequent texts count more, but less than they
did. Copies of documents of an earlier corpus or of protected held-out shards count for nothing: those documents are not
of this corpus, or must count once.

Sizes come from the table of removed documents, which every finished dedup has. While it is read, memory holds four
bytes for each line of the asked shards, then one or two: sizes repeat, so a document needs only the number of its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shuffle import Int64
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.dedup.output.removed_format import REMOVALS, RemovalsHeader
from pilekit.dedup.previous_runs import COMMAND
from pilekit.dedup.result import REMOVED
from pilekit.errors import PilekitError

Float64 = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.uint32]

_COLUMNS = ["kept_shard", "kept_number", "kept_corpus"]


@dataclass(frozen=True)
class ClusterWeights:
    """The weights of the documents that a finished dedup kept.

    dedup        the dedup
    copies       the power of a cluster's size, from 0 to 1
    copies_max   the largest weight, at least 1
    """

    dedup: DropDuplicates
    copies: float
    copies_max: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.copies <= 1:
            raise PilekitError(f"copies is a power of the number of copies, from 0 to 1, not {self.copies}")
        if self.copies_max < 1:
            raise PilekitError(f"copies_max is the most uses of a document, at least 1, not {self.copies_max}")

    def described(self) -> dict[str, Any]:
        """All that the weights depend on, as JSON types."""
        return {"dedup": self.dedup.identity, "copies": float(self.copies), "copies_max": self.copies_max}

    def sizes(self, shards: Iterable[str]) -> dict[str, Sizes]:
        """The size of each document's cluster, by shard and line; 1 for a line that is alone or was not kept.

        PilekitError for a shard that was not deduplicated, and for a damaged table or that of another run.
        """
        sizes = {shard: np.ones(self.dedup.mask(shard).header.lines, np.uint32) for shard in shards}
        path = Path(self.dedup.folder) / REMOVED
        with REMOVALS.open_table(path, RemovalsHeader) as (header, table):
            if not self.dedup.is_of(header.parameters, header.inputs):
                raise PilekitError(f"{path}: is of another run than its folder; run `{COMMAND}` again")
            for batch in table.iter_batches(columns=_COLUMNS):
                shard, number, corpus = (batch[name] for name in _COLUMNS)
                names, codes = shard.dictionary.to_pylist(), shard.indices.to_numpy()
                of_this = np.array([name == "this" for name in corpus.dictionary.to_pylist()])
                codes = np.where(of_this[corpus.indices.to_numpy()], codes, -1)
                numbers = number.to_numpy()
                for code in np.unique(codes[codes >= 0]).tolist():
                    if names[code] in sizes:
                        np.add.at(sizes[names[code]], numbers[codes == code], 1)
        return sizes

    def of_shard(self, shard: str) -> Float64:
        """The weight of each line of the shard of this name, float64 [lines]."""
        distinct, places = np.unique(self.sizes([shard])[shard], return_inverse=True)
        return self._values(distinct)[places]

    def of_lines(self, shards: Sequence[str]) -> LineWeights:
        """The weights of all lines of these shards."""
        sizes = self.sizes(shards)
        distinct = np.unique(np.concatenate([np.ones(1, np.uint32), *map(np.unique, sizes.values())]))
        dtype = np.min_scalar_type(len(distinct) - 1)
        codes = [np.searchsorted(distinct, sizes.pop(shard)).astype(dtype) for shard in shards]
        return LineWeights(self._values(distinct), codes)

    def _values(self, sizes: npt.NDArray[np.integer]) -> Float64:
        # Python's own power, because numpy's may differ in the last digit between processors.
        most = float(self.copies_max)
        return np.array([min(float(size) ** self.copies, most) for size in sizes.tolist()], np.float64)


@dataclass(frozen=True, eq=False)
class LineWeights:
    """The weight of each line of some shards.

    values   the distinct weights, float64, increasing with the size of the cluster
    codes    of each shard, unsigned [lines]: the place of each line's weight in `values`
    """

    values: Float64
    codes: list[npt.NDArray[np.unsignedinteger[Any]]]

    def of(self, shard: int, numbers: Int64) -> Float64:
        """The weights of these lines of the shard of this index, float64 [numbers]."""
        weights: Float64 = self.values[self.codes[shard][numbers]]
        return weights

    def heaviest(self, lines: Iterable[Int64], unit: int) -> Float64:
        """The largest weight in each run of `unit` of the given lines, all shards' one after another."""
        codes = np.concatenate([of_shard[numbers] for of_shard, numbers in zip(self.codes, lines, strict=True)])
        largest: Float64 = self.values[np.maximum.reduceat(codes, np.arange(0, len(codes), unit))]
        return largest
