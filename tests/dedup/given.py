"""Candidates and shingle sets as the steps before would have left them, given outright, for tests of `resolve`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.compare.resolve import Resolved, resolve
from pilekit.dedup.compare.shingle_store import ShingleStore, ends_file, sets_file
from pilekit.dedup.match.candidates import Candidates
from pilekit.dedup.match.rows import write_rows

Values = npt.NDArray[np.uint64]


class Edge(NamedTuple):
    removed: int
    kept: int
    similarity: float


def given_candidates(
    folder: Path, documents: int, pairs: Iterable[tuple[int, int]], runs: Iterable[Sequence[int] | Values]
) -> Candidates:
    """Candidates of these (later rank, earlier rank), and of these hot runs of ascending ranks."""
    candidates = Candidates(folder, documents)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(candidates.pairs.path, 2, [np.array(sorted(pairs), dtype=np.uint64).reshape(-1, 2).T])
    members = [np.array(run, dtype=np.uint64) for run in runs]
    write_rows(candidates.hot.members.path, 1, [run[None, :] for run in members])
    write_rows(candidates.hot.lengths.path, 1, [np.array([[len(run)]], dtype=np.uint64) for run in members])
    return candidates


def all_pairs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """(later, earlier) of all."""
    return [(later, earlier) for earlier, later in combinations(sorted(ranks), 2)]


def write_flat_sets(folder: Path, place: int, values: Values, sizes: npt.NDArray[np.int64]) -> None:
    """The files of a shard of which sets of these sizes are stored, each ascending, one behind the other."""
    sets_file(folder, place).write_bytes(values.data)
    ends_file(folder, place).write_bytes(np.cumsum([0, *sizes], dtype=np.int64).data)


def write_store_files(folder: Path, place: int, sets: Sequence[Values]) -> None:
    """The same, of a list of sets."""
    sizes = np.array([len(some) for some in sets], dtype=np.int64)
    write_flat_sets(folder, place, np.concatenate([np.empty(0, dtype=np.uint64), *sets]), sizes)


def given_store(folder: Path, sets: Sequence[Iterable[int] | Values], *, shards: int = 1) -> ShingleStore:
    """A store of these shingle sets, of documents 0, 1, ..., in so many shards."""
    folder.mkdir(parents=True, exist_ok=True)
    base = np.linspace(0, len(sets), shards + 1).astype(np.int64)
    for place in range(shards):
        values = [np.unique(np.array(list(some), dtype=np.uint64)) for some in sets[base[place] : base[place + 1]]]
        write_store_files(folder, place, values)
    return ShingleStore(folder, base, np.full(-(-len(sets) // 8), 255, dtype=np.uint8))


def edges_of(resolved: Resolved) -> list[Edge]:
    """The edges, in their order."""
    return [
        Edge(removed, kept, float(np.uint64(similarity).view(np.float64)))
        for table in resolved.edges.chunks()
        for removed, kept, similarity in table.T.tolist()
    ]


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
    candidates = given_candidates(folder / "candidates", len(sets), pairs, runs)
    store = given_store(folder / "store", sets, shards=shards)
    return resolve(candidates, store, threshold, folder / "resolved", memory)
