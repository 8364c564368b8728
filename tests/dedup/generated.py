"""Sketches of many millions of documents, generated when read: nothing is kept in memory or on disk.

Of each thousand documents

- 40 have one text, all over the corpus (an empty one, say);
- 60 have a text that occurs twice, in both halves of the corpus;
- 100 are in groups of 4 similar documents, one in each quarter: each has the group's key in 60 % of the bands;
- 20 share a licence header: each has that one key in 30 % of the bands;
- all others resemble no document.

Shingle sets have 20 to 40 values. The members of a group share a common set, in which each member replaces a few
values: their similarities lie around 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.dedup.document_table import DocumentTable, ids_of
from pilekit.dedup.matching import find_candidates, find_exact
from pilekit.dedup.output.removed_table import Decisions
from pilekit.dedup.resolve import ComparisonCounts, resolve
from pilekit.dedup.shingle_store import ShingleStore
from pilekit.dedup.sketch.shingles import mixed
from pilekit.workers.kernels import compiled
from tests.dedup.given import write_flat_sets

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

BANDS = 7
AT_A_TIME = 1 << 16
THRESHOLD = 0.8
MOST_SHINGLES = 40
ONE_TEXT, TEXTS_TWICE, GROUPS, LICENCE = range(0, 40), range(40, 100), range(100, 200), range(200, 220)
"""By the last three digits of the document."""

_HASH, _BYTES = -1, -2


def values(name: str, documents: Int64, of_all: int) -> UInt64:
    """A column of the sketches for these documents; `of_all` is a multiple of 4,000."""
    assert of_all % 4000 == 0
    out = np.empty(len(documents), dtype=np.uint64)
    other = {"hash_high": _HASH, "hash_low": _HASH, "text_bytes": _BYTES}
    _fill(documents, of_all, other[name] if name in other else int(name.removeprefix("key_")), out)
    return out


@compiled()
def text_of(document: int, of_all: int) -> int:
    """The first document with the same text."""
    kind = document % 1000
    if kind < 40:
        return 0
    return document - of_all // 2 if kind < 100 and document >= of_all // 2 else document


@compiled()
def _hash(one: int, other: int) -> np.uint64:
    return mixed(mixed(np.uint64(one) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(other))


@compiled()
def _fill(documents: Int64, of_all: int, column: int, out: UInt64) -> None:
    for i in range(len(documents)):
        document = text_of(documents[i], of_all)
        kind = document % 1000
        if column == -1:
            out[i] = _hash(document, 1)
        elif column == -2:
            out[i] = _hash(document, 2) % np.uint64(10_000)
        else:
            out[i] = _hash(document, 3 + column)
            share = np.float64(mixed(out[i])) / 2.0**64
            if 100 <= kind < 200 and share < 0.6:
                out[i] = _hash(document % (of_all // 4), 1000 + column)
            if 200 <= kind < 220 and share < 0.3:
                out[i] = _hash(200, 1000 + column)


def shingles(documents: Int64, of_all: int) -> tuple[UInt64, Int64]:
    """The shingle sets, uint64 [documents, 40], zeros after the last value; and the set sizes, int64 [documents].

    The sets of a group have one size, and a value that two sets share has the same place in both.
    """
    out = np.zeros((len(documents), MOST_SHINGLES), dtype=np.uint64)
    sizes = np.empty(len(documents), dtype=np.int64)
    _fill_sets(documents, of_all, out, sizes)
    return out, sizes


@compiled()
def _fill_sets(documents: Int64, of_all: int, out: UInt64, sizes: Int64) -> None:
    for i in range(len(documents)):
        document = documents[i]
        common = document % (of_all // 4) if 100 <= document % 1000 < 200 else document
        sizes[i] = 20 + np.int64(_hash(common, 2000) % np.uint64(21))
        for place in range(sizes[i]):
            own = _hash(document, 3000 + place) < np.uint64(0x0F00000000000000)  # 6 % of all
            out[i, place] = _hash(document if own else common, 4000 + place)


def write_store(folder: Path, documents: int, flagged: npt.NDArray[np.bool_], memory: int) -> ShingleStore:
    """The shingle sets of the flagged documents on disk; parts as in `generated_table`."""
    folder.mkdir(parents=True, exist_ok=True)
    borders = _borders(documents)
    for place, (begin, end) in enumerate(pairwise(borders)):
        chosen = np.flatnonzero(flagged[begin:end])
        values, sizes = shingles(begin + chosen, documents)
        there = np.arange(MOST_SHINGLES) < sizes[:, None]
        values[~there] = np.iinfo(np.uint64).max
        values.sort(axis=1)
        of_all = np.zeros(end - begin, dtype=np.int64)
        of_all[chosen] = sizes
        write_flat_sets(folder, place, values[there], of_all)
    return ShingleStore(folder, np.array(borders), memory)


def decide_generated(folder: Path, documents: int, memory: int) -> tuple[Decisions, ComparisonCounts]:
    """All steps that read no shard: exact copies, candidates, their comparison."""
    folder.mkdir()
    document_table = generated_table(documents, folder)
    decisions, copies = Decisions(documents, folder), np.zeros(documents, dtype=np.bool_)
    for pairs in find_exact(document_table, Scratch(folder, memory)):
        decisions.add_copies(pairs)
        copies[ids_of(pairs[1])] = True
    candidates = find_candidates(document_table, range(BANDS), copies, Scratch(folder, memory), jobs=2)
    with candidates.rows:
        store = write_store(folder / "sets", documents, candidates.flagged, memory // 4)
        counts = resolve(candidates, store, THRESHOLD, folder, decisions.add_near)
    return decisions, counts


@dataclass(frozen=True)
class GeneratedSketch:
    """One part of the corpus."""

    first: int
    documents: int
    of_all: int
    subset_names: tuple[str, ...] = ("ArXiv",)

    @property
    def header(self) -> SimpleNamespace:
        return SimpleNamespace(shard=f"part-{self.first}", lines=self.documents)

    def chunks(self, columns: Sequence[str]) -> Iterator[dict[str, UInt64]]:
        end = self.first + self.documents
        for first in range(self.first, end, AT_A_TIME):
            documents = np.arange(first, min(end, first + AT_A_TIME))
            given = {"number": documents - self.first, "subset": np.zeros(len(documents), dtype=np.int64)}
            yield {
                name: given[name].astype(np.uint64) if name in given else values(name, documents, self.of_all)
                for name in columns
            }


def generated_table(documents: int, folder: Path) -> DocumentTable:
    """A document table of this many documents, in 20 parts."""
    sketches = [GeneratedSketch(begin, end - begin, documents) for begin, end in pairwise(_borders(documents))]
    return DocumentTable(sketches, "longest", folder)  # type: ignore[arg-type]


def _borders(documents: int) -> list[int]:
    borders: list[int] = np.linspace(0, documents, 21).astype(np.int64).tolist()
    return borders
