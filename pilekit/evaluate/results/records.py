"""Records: a row for each scored document, in columns. All figures are computed from them.

A document's identity is its shard's name, its number there, and the hash of its text. Records are in the order of the
corpus, so figures depend neither on the order of scoring nor on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, shortened


class ScoredDocument(msgspec.Struct, frozen=True, rename={"number": "document"}):
    """A scored document: `tokens` is how many were predicted, `nll` the sum over them in nats."""

    shard: str
    number: int
    text: int
    subset: str
    bytes: int
    tokens: int
    nll: float


_COLUMNS = {
    "shard": np.int32,
    "number": np.int64,
    "text": np.uint64,
    "subset": np.int32,
    "bytes": np.int64,
    "tokens": np.int64,
    "nll": np.float64,
}


@dataclass(frozen=True, eq=False)
class Records:
    """Scored documents as parallel columns, by their shard's place in the corpus, then by number.

    shards    names, in the order of the corpus, including shards without a document
    subsets   names, in the manifest's order, then others in the order of their first documents
    shard     int32 [documents]: index into `shards`
    number    int64 [documents]: number in the shard
    text      uint64 [documents]: xxh3_64 of the raw text's UTF-8
    subset    int32 [documents]: index into `subsets`
    bytes     int64 [documents]: UTF-8 bytes of the raw text
    tokens    int64 [documents]: tokens predicted
    nll       float64 [documents]: the sum of their negative log-likelihoods in nats
    """

    shards: tuple[str, ...]
    subsets: tuple[str, ...]
    shard: npt.NDArray[np.int32] = field(repr=False)
    number: npt.NDArray[np.int64] = field(repr=False)
    text: npt.NDArray[np.uint64] = field(repr=False)
    subset: npt.NDArray[np.int32] = field(repr=False)
    bytes: npt.NDArray[np.int64] = field(repr=False)
    tokens: npt.NDArray[np.int64] = field(repr=False)
    nll: npt.NDArray[np.float64] = field(repr=False)

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def of(cls, documents: Iterable[ScoredDocument], shards: Sequence[str], manifest: Manifest) -> Records:
        """The records of `documents`, given in any order, of a corpus with these shards.

        PilekitError for a document of another shard, and for two records of one document.
        """
        places = {name: place for place, name in enumerate(shards)}
        by_place: dict[tuple[int, int], ScoredDocument] = {}
        for document in documents:
            if document.shard not in places:
                raise PilekitError(f"{shortened(document.shard, 200)}: is no shard of this corpus")
            if by_place.setdefault((places[document.shard], document.number), document) is not document:
                raise PilekitError(f"{shortened(document.shard, 200)}, document {document.number}: is recorded twice")
        ordered = [document for _, document in sorted(by_place.items(), key=lambda item: item[0])]
        labels = dict.fromkeys(document.subset for document in ordered)
        subsets = [subset.name for subset in manifest.subsets if subset.name in labels]
        subsets += [name for name in labels if name not in subsets]
        code = {name: place for place, name in enumerate(subsets)}
        columns = {name: [getattr(document, name) for document in ordered] for name in _COLUMNS}
        columns["shard"] = [places[name] for name in columns["shard"]]
        columns["subset"] = [code[name] for name in columns["subset"]]
        arrays = {name: np.array(columns[name], dtype=dtype) for name, dtype in _COLUMNS.items()}
        return cls(tuple(shards), tuple(subsets), **arrays)

    def documents(self) -> list[ScoredDocument]:
        """The records as `Records.of` takes them."""
        columns = {name: getattr(self, name).tolist() for name in _COLUMNS}
        columns["shard"] = [self.shards[code] for code in columns["shard"]]
        columns["subset"] = [self.subsets[code] for code in columns["subset"]]
        return [ScoredDocument(*row) for row in zip(*columns.values(), strict=True)]

    def where(self, mask: npt.NDArray[np.bool_]) -> Records:
        """The records for which `mask` (bool [documents]) is true, with the names of all shards and subsets."""
        return replace(self, **{name: getattr(self, name)[mask] for name in _COLUMNS})
