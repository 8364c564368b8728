"""Verify: the exact similarity of candidates, in keeper order, so that only those with kept documents are computed.

A document is decided when all before it in the keeper order are: it is compared with those of its candidates that are
kept. If one reaches the threshold, the document is removed, and its edge to the most similar of them (of equally
similar ones the first in keeper order) is written. So what is written is a proof for each removal, and of a hundred
near-copies each is compared with one document, not with ninety-nine. Members of hot runs are compared with
representatives (representatives.py) on the way.

Decisions depend on the candidates and the threshold alone, not on memory or threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.dedup.compare.representatives import Representatives
from pilekit.dedup.compare.resolve import Sweep
from pilekit.dedup.compare.shingle_store import ShingleStore
from pilekit.dedup.match.candidates import Candidates
from pilekit.dedup.match.external_sort import RowSort
from pilekit.dedup.match.large_groups import HotRuns
from pilekit.dedup.match.rows import Rows, Table, write_rows
from pilekit.engine import Advance, usable_cpus

_MEMBERS_AT_A_TIME = 1 << 14
_MEMORY_PER_MEMBER = 8 << 10
"""Each may bring 128 representatives."""


class Counts(msgspec.Struct, frozen=True):
    """What there was to do."""

    compared: int
    """Pairs of shingle sets."""
    hot_runs: int
    """Runs with so many kept members that others were not compared with all of them."""
    hot_documents: int
    """Documents that were kept, but were not compared with all that were kept before them in such a run."""


@dataclass(frozen=True)
class Verified:
    """The edges of removed documents, on disk."""

    folder: Path

    @property
    def edges(self) -> Rows:
        """(rank of the removed document, rank of a kept one, bits of the float64 similarity), ascending."""
        return Rows(self.folder / "edges.rows", 3)

    @property
    def counts(self) -> Counts:
        """What there was to do."""
        return msgspec.json.decode((self.folder / "edges.json").read_bytes(), type=Counts)


def verify(
    candidates: Candidates,
    store: ShingleStore,
    threshold: float,
    folder: Path,
    memory: int,
    *,
    jobs: int | None = None,
    advance: Advance | None = None,
) -> Verified:
    """Decide all candidates, and write the edges of those that are removed into `folder`.

    store     the shingle sets of the candidates
    memory    bytes that may be used, beside some bits for each document
    jobs      how many threads; None: the usable CPUs
    advance   receives the number of further candidate pairs that were dealt with

    Files that are there are taken as they are.
    """
    verified = Verified(folder)
    if verified.edges.path.exists():
        return verified
    folder.mkdir(parents=True, exist_ok=True)
    threads = usable_cpus() if jobs is None else jobs
    with (
        RowSort(folder, 3, memory // 4) as members,
        Representatives(folder) as representatives,
        ThreadPoolExecutor(threads) as pool,
    ):
        for table in _members(candidates.hot):
            members.add(table)
        sweep = Sweep(store, threshold, candidates.documents, representatives, memory // 2, pool, threads)

        def edges() -> Iterator[Table]:
            at_a_time = max(64, min(_MEMBERS_AT_A_TIME, memory // 8 // _MEMORY_PER_MEMBER))
            for block in _blocks(candidates.pairs.chunks(), _smaller(members.chunks(), at_a_time)):
                yield sweep.decide(*block)
                if advance is not None:
                    advance(block[0].shape[1])
            with write_atomically(folder / "edges.json") as file:
                file.write(msgspec.json.encode(Counts(sweep.compared, sweep.hot_runs, sweep.hot_documents)))

        # The edges get their name last: when they are there, all is.
        write_rows(verified.edges.path, 3, edges())
    return verified


def _members(hot: HotRuns) -> Iterator[Table]:
    """(rank, where its run begins among the members of all runs, length of the run) of all members."""
    begin = 0
    for table in hot.lengths.chunks():
        lengths = table[0]
        begins = np.uint64(begin) + np.cumsum(lengths) - lengths
        end = begin + int(lengths.sum())
        for ranks in hot.members.chunks(begin, end):
            numbers = np.arange(begin, begin + ranks.shape[1], dtype=np.uint64)
            runs = np.searchsorted(begins, numbers, side="right") - 1
            yield np.stack([ranks[0], begins[runs], lengths[runs]])
            begin += ranks.shape[1]


def _smaller(tables: Iterable[Table], rows: int) -> Iterator[Table]:
    for table in tables:
        for begin in range(0, table.shape[1], rows):
            yield table[:, begin : begin + rows]


def _blocks(pairs: Iterator[Table], members: Iterator[Table]) -> Iterator[tuple[Table, Table]]:
    """Cut both, which ascend by their first columns, in the same places: where a rank is complete in both."""
    streams: list[Iterator[Table] | None] = [pairs, members]
    held = [np.empty((2, 0), dtype=np.uint64), np.empty((3, 0), dtype=np.uint64)]
    while any(stream is not None for stream in streams):
        limit = None
        for i, stream in enumerate(streams):
            while stream is not None and (not held[i].shape[1] or held[i][0, 0] == held[i][0, -1]):
                more = next(stream, None)
                if more is None:
                    streams[i] = stream = None
                else:
                    held[i] = np.concatenate([held[i], more], axis=1)
            if stream is not None:
                limit = held[i][0, -1] if limit is None else min(limit, held[i][0, -1])
        block = []
        for i, table in enumerate(held):
            ready = table.shape[1] if limit is None else int(np.searchsorted(table[0], limit))
            block.append(table[:, :ready])
            held[i] = table[:, ready:]
        yield block[0], block[1]
