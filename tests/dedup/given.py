"""What the earlier steps leave, made by hand for tests of one step: sketches, tables, candidates, shingle sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.corpus import Shard, shard_of
from pilekit.dedup import resolve as module
from pilekit.dedup.matching import Candidates
from pilekit.dedup.resolve import ComparisonCounts
from pilekit.dedup.shingle_store import ShingleStore, ends_file, sets_file
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.dedup.sketch.sketch_shard import SketchSettings, sketch_shard
from pilekit.shards.corpus_job import Share
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.read.change_check import version_of

Values = npt.NDArray[np.uint64]

OWN = 1 << 63
"""The bit of a rank that documents of earlier runs lack."""


def sketch(path: Path, folder: Path, **settings: Any) -> ShardSketch:
    """The sketch of the shard at `path`, written into `folder`."""
    share, shard = Share(ahead=True, threads=settings.pop("threads", 2)), shard_of(str(path))
    how = SketchSettings(**{"bands": Bands(5, 3), "ngram": 3} | settings)
    return sketch_shard(shard, lambda amount: None, settings=how, folder=folder, inputs=inputs_of(shard), share=share)


def inputs_of(shard: Shard) -> Inputs:
    """The inputs of a job that begins now and reads this shard."""
    return Inputs({}, {shard.name: version_of(shard.path)})


class ListedDocuments:
    """Documents 0, 1, ... with the columns of their sketches, yielded as by a `DocumentTable`.

    ranks     of each document, its id in the low 32 bits
    absent    documents that are never yielded, like those that an earlier run removed
    """

    def __init__(
        self,
        ranks: Sequence[int],
        columns: dict[str, Sequence[int]],
        *,
        absent: Iterable[int] = (),
        at_a_time: int = 1000,
    ):
        self.documents = len(ranks)
        self._given = np.setdiff1d(np.arange(len(ranks)), np.array([*absent], dtype=np.int64))
        self._at_a_time = at_a_time
        self._ranks = np.array(ranks, dtype=np.uint64)
        self._columns = {name: np.array(values, dtype=np.uint64) for name, values in columns.items()}

    def chunks(self, names: Sequence[str]) -> Iterator[tuple[Values, dict[str, Values]]]:
        for begin in range(0, len(self._given), self._at_a_time):
            some = self._given[begin : begin + self._at_a_time]
            yield self._ranks[some], {name: self._columns[name][some] for name in names}


def ranks_of_lengths(lengths: Sequence[int], against: int = 0) -> list[int]:
    """The ranks of documents of these lengths in the order of `--keep longest`; the first few are of an earlier run."""
    return [
        (OWN if document >= against else 0) | ((1 << 31) - 1 - length) << 32 | document
        for document, length in enumerate(lengths)
    ]


class Edge(NamedTuple):
    removed: int
    kept: int
    similarity: float


class Resolved(NamedTuple):
    edges: list[Edge]
    counts: ComparisonCounts


def given_candidates(
    folder: Path, documents: int, pairs: Iterable[tuple[int, int]], runs: Iterable[Sequence[int] | Values]
) -> Candidates:
    """Candidates with these pairs (later rank, earlier rank) and these hot runs of ascending ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    candidates = Candidates(documents, folder, 1 << 20)
    rows = [(later, 0, earlier) for later, earlier in pairs]
    candidates.add(np.array(rows, dtype=np.uint64).reshape(-1, 3).T)
    for number, run in enumerate(runs, 1):
        ranks = np.array(run, dtype=np.uint64)
        rows = np.stack([ranks, np.full_like(ranks, number), np.zeros_like(ranks)])
        rows[2, :1] = len(run)
        candidates.add(rows)
    return candidates


def all_pairs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """(later, earlier) of all."""
    return [(later, earlier) for earlier, later in combinations(sorted(ranks), 2)]


def write_flat_sets(folder: Path, place: int, values: Values, sizes: npt.NDArray[np.int64]) -> None:
    """The files of a shard whose documents have sets of these sizes, each ascending, one after the other."""
    sets_file(folder, place).write_bytes(values.data)
    ends_file(folder, place).write_bytes(np.insert(sizes.cumsum(), 0, 0).data)


def given_store(
    folder: Path, sets: Sequence[Iterable[int] | Values], *, shards: int = 1, memory: int = 1 << 28
) -> ShingleStore:
    """A store of these shingle sets, of documents 0, 1, ..., in this many shards."""
    folder.mkdir(parents=True, exist_ok=True)
    base = np.linspace(0, len(sets), shards + 1).astype(np.int64)
    for place in range(shards):
        values = [np.unique(np.array(list(some), dtype=np.uint64)) for some in sets[base[place] : base[place + 1]]]
        flat = np.concatenate([np.empty(0, dtype=np.uint64), *values])
        write_flat_sets(folder, place, flat, np.array([len(some) for some in values], dtype=np.int64))
    return ShingleStore(folder, base, memory)


def resolve(candidates: Candidates, store: ShingleStore, threshold: float, folder: Path) -> Resolved:
    """All edges and the counts."""
    tables: list[Values] = []
    counts = module.resolve(candidates, store, threshold, folder, tables.append)
    edges = [
        Edge(removed, kept, float(np.uint64(similarity).view(np.float64)))
        for table in tables
        for removed, kept, similarity in table.T.tolist()
    ]
    return Resolved(edges, counts)


def resolve_given(
    folder: Path,
    sets: Sequence[Iterable[int] | Values],
    pairs: Iterable[tuple[int, int]] = (),
    runs: Iterable[Sequence[int] | Values] = (),
    *,
    threshold: float = 0.8,
    memory: int = 1 << 28,
    shards: int = 1,
) -> Resolved:
    """Resolve candidates among documents with these shingle sets; the low half of a rank is the document's number."""
    candidates = given_candidates(folder, len(sets), pairs, runs)
    store = given_store(folder / "store", sets, shards=shards, memory=memory)
    return resolve(candidates, store, threshold, folder)
