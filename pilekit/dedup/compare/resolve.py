"""Resolve candidates: the exact similarity of each document to kept documents, in keeper order.

A document is decided when all before it in the keeper order are: it is compared with those of its candidates that are
kept. If one reaches the threshold, the document is removed, and its edge to the most similar of them (of equally
similar ones the first in keeper order) is written. So each removal has its proof, and each of a hundred near-copies is
compared with one document, not with ninety-nine.

A run of 100,000 documents that share a licence header cannot be compared pair by pair. A member of a hot run is
compared with kept members of its run, at most 128 of them: a new one takes the place of the one that resembled nothing
for longest. So a run costs what its length costs, a run of any number of copies of 128 documents loses nothing, and
where the longest is kept, what has been let go is mostly too long to resemble what follows. Two documents that resemble
each other mostly meet in other bands besides, where their run is short.

Decisions depend on the candidates and the threshold alone, not on memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.dedup.bits import no_bits
from pilekit.dedup.compare.jaccard_kernels import (
    COMPARED,
    COUNTS,
    HOT_DOCUMENTS,
    HOT_RUNS,
    MAPPED,
    MEMBERS,
    PAIRS,
    decide,
)
from pilekit.dedup.compare.shingle_store import WORD, ShingleStore
from pilekit.dedup.match.candidates import Candidates
from pilekit.dedup.match.external_sort import RowSort, scratch_errors
from pilekit.dedup.match.large_groups import HotRuns
from pilekit.dedup.match.rows import Rows, Table, write_rows
from pilekit.engine import Advance

_MOST_MAPPED = 64 << 20
"""Bytes of sets; then they are released. Mapping them again takes less time than comparing them."""


class Counts(msgspec.Struct, frozen=True):
    """How much was compared, and how much was not."""

    compared: int
    """Pairs of shingle sets."""
    hot_runs: int
    """Runs with so many kept members that others were not compared with all of them."""
    hot_documents: int
    """Documents that were kept, but were not compared with all that were kept before them in such a run."""


@dataclass(frozen=True)
class Resolved:
    """The edges of removed documents, on disk."""

    folder: Path

    @property
    def edges(self) -> Rows:
        """(rank of the removed document, rank of a kept one, bits of the float64 similarity), ascending."""
        return Rows(self.folder / "edges.rows", 3)

    @property
    def counts(self) -> Counts:
        """How much was compared."""
        return msgspec.json.decode((self.folder / "edges.json").read_bytes(), type=Counts)


def resolve(
    candidates: Candidates,
    store: ShingleStore,
    threshold: float,
    folder: Path,
    memory: int,
    *,
    advance: Advance | None = None,
) -> Resolved:
    """Decide all candidates, and write the edges of those that are removed into `folder`.

    store     the shingle sets of the candidates
    memory    bytes that may be used, beside some bits for each document
    advance   receives the number of further candidate pairs that were decided

    Files that are there are taken as they are.
    """
    resolved = Resolved(folder)
    if resolved.edges.path.exists():
        return resolved
    folder.mkdir(parents=True, exist_ok=True)
    most_mapped = min(_MOST_MAPPED, memory // 4 + 1)
    removed, counts = no_bits(candidates.documents), np.zeros(COUNTS, dtype=np.int64)
    with RowSort(folder, 3, memory // 4) as members, tempfile.TemporaryFile(dir=folder) as file:
        for table in _members(candidates.hot):
            members.add(table)
        size = max(1, candidates.hot.members.count) * WORD
        with scratch_errors(folder):
            os.posix_fallocate(file.fileno(), 0, size)  # Writing to mapped holes of a full disk would kill the process.
        representatives = np.memmap(file, dtype=np.uint64)

        def edges() -> Iterator[Table]:
            for pairs, some in _blocks(candidates.pairs.chunks(), members.chunks()):
                counts[PAIRS] = counts[MEMBERS] = 0
                while counts[PAIRS] < pairs.shape[1] or counts[MEMBERS] < some.shape[1]:
                    yield decide(pairs, some, store.mapped, threshold, representatives, removed, most_mapped, counts)
                    if counts[MAPPED] >= most_mapped:
                        store.release()
                        counts[MAPPED] = 0
                if advance is not None:
                    advance(pairs.shape[1])
            found = Counts(*(int(counts[place]) for place in (COMPARED, HOT_RUNS, HOT_DOCUMENTS)))
            with write_atomically(folder / "edges.json") as out:
                out.write(msgspec.json.encode(found))

        # The edges get their name last: when they are there, all is.
        write_rows(resolved.edges.path, 3, edges())
    return resolved


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
            block.append(np.ascontiguousarray(table[:, :ready]))
            held[i] = table[:, ready:]
        yield block[0], block[1]
