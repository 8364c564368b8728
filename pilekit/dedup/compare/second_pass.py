"""The second pass over the shards: the shingle sets of flagged documents, into the files of a `ShingleStore`.

Each shard has its own files, which get their names when they are complete. A run after a kill makes the missing ones.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import Shard
from pilekit.dedup.bits import Bits
from pilekit.dedup.compare.candidate_texts import FlaggedDocuments, flagged_texts
from pilekit.dedup.compare.shingle_sets import Sets, large_sets, shingle_sets
from pilekit.dedup.compare.shingle_store import Int64, ShingleStore, ends_file, sets_file
from pilekit.dedup.match.population import Population
from pilekit.dedup.sketch.shingles import Bytes
from pilekit.engine import Advance, map_shards
from pilekit.shards.processes import processes_for, threads_of

LARGE_BYTES = 16 << 20
"""Of a longer text not all shingles are held at a time."""

_WRITTEN = 1 << 13
"""Values written at a time."""


def store_shingles(
    population: Population,
    shards: Sequence[Shard],
    flagged: Bits,
    folder: Path,
    *,
    jobs: int | None = None,
    advance: Advance | None = None,
) -> ShingleStore:
    """Read the shards again for the shingle sets of the flagged documents.

    shards    those of `population.sketches`, in their order
    flagged   bit per id, first bit lowest; uint8 [at least documents / 8]
    folder    of the files; complete ones of the same run are taken
    jobs      how many shards at a time, each in a process of its own; None: the usable CPUs
    advance   called with each further amount of stored bytes dealt with

    A shard that is not the one that was sketched is a `PilekitError` that names it.
    """
    work = [
        (place, FlaggedDocuments(shard, sketch, _bits_between(flagged, *population.base[place : place + 2].tolist())))
        for place, (shard, sketch) in enumerate(zip(shards, population.sketches, strict=True))
    ]
    processes = processes_for(shards, jobs)
    store = functools.partial(_store_shard, folder=folder, threads=threads_of(processes))
    map_shards(store, work, jobs=processes, names=[shard.name for shard in shards], on_progress=advance)
    return ShingleStore(folder, population.base, flagged)


def _bits_between(bits: Bits, begin: int, end: int) -> Bits:
    """Bits begin to end, of which the first becomes bit 0."""
    shift = begin % 8
    span = np.append(bits[begin // 8 : (end + 7) // 8], np.uint8(0))
    chosen: Bits = span[:-1] if not shift else (span[:-1] >> np.uint8(shift)) | (span[1:] << np.uint8(8 - shift))
    chosen = chosen[: (end - begin + 7) // 8]
    if (end - begin) % 8:
        chosen[-1] &= (1 << (end - begin) % 8) - 1
    return chosen


def _store_shard(work: tuple[int, FlaggedDocuments], advance: Advance, *, folder: Path, threads: int) -> None:
    place, documents = work
    header = documents.sketch.header
    if ends_file(folder, place).exists():
        advance(header.size)
        return
    documents.check_unchanged()
    # The ends are complete last: where they are, the sets are.
    with write_atomically(ends_file(folder, place)) as ends_out, write_atomically(sets_file(folder, place)) as sets_out:
        end = np.zeros(1, dtype=np.int64)
        ends_out.write(end.data)
        for found in _sets(flagged_texts(documents, advance, ahead=threads > 1), header.ngram, threads):
            # The system keeps what is written at once as one piece, and maps it as one, needed or not.
            for begin in range(0, len(found.values), _WRITTEN):
                sets_out.write(found.values[begin : begin + _WRITTEN].data)
            ends = end + np.cumsum(found.sizes)
            ends_out.write(ends.data)
            end = ends[-1:] if len(ends) else end
            del found
        documents.check_unchanged()


def _sets(batches: Iterator[list[bytes]], ngram: int, threads: int) -> Iterator[Sets]:
    """The sets of all texts."""
    waiting: deque[Future[Sets]] = deque()
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        for batch in batches:
            data, offsets = _joined(batch)
            batch.clear()  # A large text is not to be held twice, nor while the next is read.
            large = len(data) > LARGE_BYTES
            while waiting and (large or len(waiting) > threads):
                yield waiting.popleft().result()
            if large:
                yield from large_sets(data, offsets, ngram)
            elif threads <= 1:
                yield shingle_sets(data, offsets, ngram)
            else:
                waiting.append(pool.submit(shingle_sets, data, offsets, ngram))
            del data
        for future in waiting:
            yield future.result()


def _joined(texts: list[bytes]) -> tuple[Bytes, Int64]:
    """The texts one behind the other, and where each begins, int64 [texts + 1]."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return np.frombuffer(b"".join(texts), dtype=np.uint8), offsets
