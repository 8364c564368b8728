"""The second pass over the shards: the shingle sets of flagged documents, into the files of a `ShingleStore`.

Each shard makes its own files, which appear under their names when they are complete, with a hash of all that they
depend on. A run that was killed takes those that are there and fit, and makes the others.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus import Shard
from pilekit.dedup.bits import Bits
from pilekit.dedup.compare.candidate_texts import FlaggedDocuments, flagged_texts
from pilekit.dedup.compare.difference import bitmap_words
from pilekit.dedup.compare.shingle_sets import Sets, large_sets, shingle_sets
from pilekit.dedup.compare.shingle_store import (
    EXTENT_WORDS,
    KEY_WORDS,
    WORD,
    Int64,
    ShingleStore,
    bits_file,
    extents_file,
    sets_file,
)
from pilekit.dedup.match.population import Population
from pilekit.dedup.sketch.shingles import Bytes, UInt64
from pilekit.engine import Advance, map_shards
from pilekit.shards.processes import processes_for, threads_of

LARGE_BYTES = 16 << 20
"""Of a longer text not all shingles are held at a time."""


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
    folder    of the files; what is there and fits is taken
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
    made_of = [__version__, header.ngram, header.text_field, header.label_path, header.size, header.sample]
    key = xxhash.xxh3_128(repr(made_of).encode())
    key.update(documents.flagged.data)
    words = np.frombuffer(key.digest(), dtype=np.uint64)
    extents, sets, bits = extents_file(folder, place), sets_file(folder, place), bits_file(folder, place)
    if _are_there(extents, sets, bits, words, len(documents)):
        advance(header.size)
        return
    documents.check_unchanged()
    # The extents are complete last: where they are, the others are.
    with write_atomically(extents) as extents_out:
        extents_out.write(words.data)
        ends = np.zeros((1, EXTENT_WORDS), dtype=np.int64)
        extents_out.write(ends.data)
        with write_atomically(sets) as sets_out, write_atomically(bits) as bits_out:
            for found in _sets(flagged_texts(documents, advance, ahead=threads > 1), header.ngram, threads):
                sets_out.write(found.values.data)
                bits_out.write(found.bits.data)
                lengths = np.stack([found.sizes, bitmap_words(found.sizes)], axis=1)
                more = ends[-1] + np.cumsum(lengths, axis=0)
                extents_out.write(more.data)
                ends = more if len(more) else ends
                del found
        documents.check_unchanged()


def _are_there(extents: Path, sets: Path, bits: Path, key: UInt64, documents: int) -> bool:
    """Whether the files are there and were made of what has this key."""
    try:
        if extents.stat().st_size != (KEY_WORDS + (documents + 1) * EXTENT_WORDS) * WORD:
            return False
        with extents.open("rb") as file:
            there = np.frombuffer(file.read(KEY_WORDS * WORD), dtype=np.uint64)
            file.seek(-EXTENT_WORDS * WORD, 2)
            ends = np.frombuffer(file.read(), dtype=np.int64).tolist()
        return bool(np.array_equal(there, key)) and [sets.stat().st_size, bits.stat().st_size] == [
            WORD * end for end in ends
        ]
    except FileNotFoundError:
        return False


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
