"""Sketches of many millions of documents, made when they are read: nothing of them is in memory or on disk.

Of each thousand documents, in groups that lie far apart from each other,

- 40 are copies of one text, all over the corpus (an empty one, say);
- 60 are exact copies of another document, one each;
- 100 are in groups of 4 documents that are much alike: two of them share a band with a probability of 0.36;
- 20 share one licence header: any two share a band with a probability of 0.09, and so do all thousands of them;
- all others are like nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from pilekit.dedup.population import Population
from pilekit.dedup.shingles import mixed
from pilekit.kernels import compiled

UInt64 = npt.NDArray[np.uint64]

BANDS = 21
AT_A_TIME = 1 << 16


@compiled()
def _hash(one: int, other: int) -> np.uint64:
    return mixed(mixed(np.uint64(one) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(other))


@compiled()
def text_of(document: int, documents: int) -> int:
    """The first document in the corpus order of those with the same text."""
    kind, groups = document % 1000, documents // 1000
    if kind < 40:
        return 0
    if kind < 100 and (document // 1000) * 2 >= groups:
        return document - (documents // 2000) * 1000
    return document


@compiled()
def group_of(document: int, documents: int) -> tuple[int, float]:
    """(the group in which documents are alike, with which probability it takes the group's key in a band)."""
    kind, quarter = document % 1000, max(1, documents // 4000)
    if 100 <= kind < 200:
        return (document // 1000) % quarter * 1000 + kind, 0.6
    if 200 <= kind < 220:
        return 200, 0.3
    return document, 1.0


@compiled()
def _fill(first: int, documents: int, band: int, out: UInt64) -> None:
    """band -1: the hash of the text; -2: its bytes."""
    for i in range(len(out)):
        document = text_of(first + i, documents)
        if band == -1:
            out[i] = _hash(document, 1)
        elif band == -2:
            out[i] = _hash(document, 2) % np.uint64(10_000)
        else:
            group, share = group_of(document, documents)
            own = _hash(document, 3 + band)
            out[i] = own
            if np.float64(mixed(own) >> np.uint64(11)) < share * 2.0**53:
                out[i] = _hash(group, 1000 + band)


def column(name: str, first: int, count: int, documents: int) -> UInt64:
    """A column of the sketch of documents `first` to `first + count`, of so many in all."""
    out = np.empty(count, dtype=np.uint64)
    of_text = {"hash_high": -1, "hash_low": -1, "text_bytes": -2}
    _fill(first, documents, of_text[name] if name in of_text else int(name.removeprefix("key_")), out)
    return out


@dataclass(frozen=True)
class GeneratedSketch:
    """One part of the corpus."""

    first: int
    documents: int
    of_all: int

    @property
    def header(self) -> SimpleNamespace:
        return SimpleNamespace(shard=f"part-{self.first}", lines=self.documents)

    def chunks(self, columns: Sequence[str]) -> Iterator[dict[str, UInt64]]:
        end = self.first + self.documents
        for first in range(self.first, end, AT_A_TIME):
            count = min(AT_A_TIME, end - first)
            yield {name: column(name, first, count, self.of_all) for name in columns}


def generated_population(documents: int, parts: int = 20) -> Population:
    borders = np.linspace(0, documents, parts + 1).astype(np.int64).tolist()
    sketches = [GeneratedSketch(a, b - a, documents) for a, b in pairwise(borders)]
    return Population(sketches, "longest")  # type: ignore[arg-type]
