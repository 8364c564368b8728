"""`Records`: what is known of each document that was scored, in columns of 48 bytes a document.

A document's identity is its shard's name, its number there, and the hash of its text: two records of one identity are
of the same text, whichever model they are of. The order is that of the corpus, so it depends neither on the order in
which documents were scored nor on who scored them, and sums over it come out the same to the last bit.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Manifest
from pilekit.errors import PilekitError, visible

logger = logging.getLogger(__name__)

_CODES = {"shard": "i", "number": "q", "text": "Q", "subset": "i", "bytes": "q", "tokens": "q", "nll": "d"}


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """A document that was scored: `tokens` is how many were predicted, `nll` the sum over them in nats."""

    shard: str
    number: int
    text: int
    subset: str
    bytes: int
    tokens: int
    nll: float


@dataclass(frozen=True, eq=False)
class Records:
    """Scored documents as parallel columns, by their shard's place in the corpus, then by number.

    shards    names, in the order of the corpus; also of those without a document
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

        Of a record that is there twice one is taken, which a warning says. PilekitError for a document of another
        shard, and for one of which two records differ.
        """
        places = {name: place for place, name in enumerate(shards)}
        subsets: dict[str, int] = {}
        columns: dict[str, array[Any]] = {name: array(code) for name, code in _CODES.items()}
        for document in documents:
            place = places.get(document.shard)
            if place is None:
                raise PilekitError(f"{visible(document.shard, 200)}: is no shard of this corpus")
            columns["shard"].append(place)
            columns["number"].append(document.number)
            columns["text"].append(document.text)
            columns["subset"].append(subsets.setdefault(document.subset, len(subsets)))
            columns["bytes"].append(document.bytes)
            columns["tokens"].append(document.tokens)
            columns["nll"].append(document.nll)
        found = {name: np.frombuffer(column, dtype=np.dtype(column.typecode)) for name, column in columns.items()}
        return cls(tuple(shards), tuple(subsets), **found)._in_order(manifest)

    @classmethod
    def joined(cls, parts: Sequence[Records], manifest: Manifest) -> Records:
        """All records of `parts`, which are of the same shards, at least one part; of a record in two, see `of`."""
        subsets = {name: None for part in parts for name in part.subsets}
        places = {name: place for place, name in enumerate(subsets)}
        codes = [np.array([places[name] for name in part.subsets], dtype=np.int32)[part.subset] for part in parts]
        whole = [replace(part, subset=code) for part, code in zip(parts, codes, strict=True)]
        found = {name: np.concatenate([getattr(part, name) for part in whole]) for name in _CODES}
        return cls(parts[0].shards, tuple(subsets), **found)._in_order(manifest)

    def where(self, mask: npt.NDArray[np.bool_]) -> Records:
        """The records for which `mask` (bool [documents]) is true, with the names of all shards and subsets."""
        return replace(self, **{name: getattr(self, name)[mask] for name in _CODES})

    def _without_copies(self) -> Records:
        """One record of each document, of records in order; PilekitError where two of one document differ."""
        alike = {name: getattr(self, name)[1:] == getattr(self, name)[:-1] for name in _CODES}
        again = alike["shard"] & alike["number"]
        if not again.any():
            return self

        def told(where: npt.NDArray[np.bool_]) -> str:
            first = int(np.flatnonzero(where)[0])
            return f"{visible(self.shards[self.shard[first]], 200)}, document {self.number[first]}"

        differing = again & ~np.logical_and.reduce(list(alike.values()))
        if differing.any():
            raise PilekitError(f"{told(differing)}: is recorded twice, and not alike")
        count = int(np.count_nonzero(again))
        copies = "1 copy of a record is" if count == 1 else f"{count:,} copies of records are"
        logger.warning("%s: is recorded twice, alike; %s passed over", told(again), copies)
        return self.where(np.concatenate([[True], ~again]))

    def _in_order(self, manifest: Manifest) -> Records:
        order = np.lexsort((self.number, self.shard))
        of = replace(self, **{name: getattr(self, name)[order] for name in _CODES})
        of = of._without_copies()
        met, first_places = np.unique(of.subset, return_index=True)
        by_first = {self.subsets[code]: int(code) for code in met[np.argsort(first_places)]}
        known = [subset.name for subset in manifest.subsets if subset.name in by_first]
        names = tuple(dict.fromkeys((*known, *by_first)))
        codes = np.zeros(len(self.subsets), dtype=np.int32)
        for code, name in enumerate(names):
            codes[by_first[name]] = code
        return replace(of, subsets=names, subset=codes[of.subset])
