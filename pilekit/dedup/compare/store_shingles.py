"""The second pass over the shards: write the shingle sets of all candidates, for a `ShingleStore` to read.

Each shard has its own files, which get their names when they are complete. A resumed run writes the missing ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import Shard
from pilekit.dedup.compare.candidate_texts import candidate_texts, check_unchanged
from pilekit.dedup.compare.shingle_store import ShingleStore, ends_file, sets_file
from pilekit.dedup.in_threads import map_in_threads
from pilekit.dedup.match.population import Flags, Population
from pilekit.dedup.sketch.shingles import Sets, shingle_sets
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.engine import Advance, map_shards
from pilekit.shards.processes import processes_for, threads_of

_WRITTEN = 1 << 13
"""Values written at once. The system caches one write as one piece, and maps the whole piece."""


def store_shingles(
    population: Population,
    shards: Sequence[Shard],
    flagged: Flags,
    folder: Path,
    *,
    jobs: int | None = None,
    advance: Advance | None = None,
) -> ShingleStore:
    """Read the shards again and write the shingle sets of the flagged documents.

    shards    the shards of `population.sketches`, in the same order
    flagged   a flag for each id
    folder    of the files; complete files of the same run are used again
    jobs      number of shards at a time, each in its own process; None: the usable CPUs
    advance   receives further amounts of stored bytes

    `PilekitError` for a shard that differs from the sketched shard.
    """
    work = []
    for place, (shard, sketch) in enumerate(zip(shards, population.sketches, strict=True)):
        begin, end = population.base[place : place + 2].tolist()
        work.append((place, shard, sketch, np.packbits(flagged[begin:end])))
    processes = processes_for(shards, jobs)
    store = functools.partial(_store_shard, folder=folder, threads=threads_of(processes))
    map_shards(store, work, jobs=processes, names=[shard.name for shard in shards], on_progress=advance)
    return ShingleStore(folder, population.base)


def _store_shard(
    work: tuple[int, Shard, ShardSketch, npt.NDArray[np.uint8]], advance: Advance, *, folder: Path, threads: int
) -> None:
    place, shard, sketch, bits = work
    if ends_file(folder, place).exists():
        advance(sketch.header.size)
        return
    check_unchanged(shard, sketch)
    flagged: Flags = np.unpackbits(bits, count=sketch.documents).view(np.bool_)
    numbers = np.concatenate([np.zeros(0, np.uint32), *(chunk["number"] for chunk in sketch.chunks(["number"]))])

    def sets(texts: list[bytes]) -> Sets:
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        data = [np.frombuffer(b"".join(texts), dtype=np.uint8)]
        texts.clear()  # A large text must not be held twice.
        return shingle_sets(data.pop(), offsets, sketch.header.ngram)

    # The ends are written last: if they exist, so do the sets.
    with write_atomically(ends_file(folder, place)) as ends_out, write_atomically(sets_file(folder, place)) as sets_out:
        sizes = np.zeros(sketch.documents, dtype=np.int64)
        found = []
        texts = candidate_texts(shard, sketch, numbers[flagged].astype(np.int64), advance, ahead=threads > 1)
        for _, some in map_in_threads(sets, texts, threads - 1, size_of=lambda texts: sum(map(len, texts))):
            for begin in range(0, len(some.values), _WRITTEN):
                sets_out.write(some.values[begin : begin + _WRITTEN].data)
            found.append(some.sizes)
            del some
        sizes[flagged] = np.concatenate([np.zeros(0, np.int64), *found])
        ends_out.write(np.cumsum(np.append(0, sizes)).data)
        check_unchanged(shard, sketch)
