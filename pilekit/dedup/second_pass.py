"""The second pass over the shards: the shingle sets of flagged documents, into the files of a `ShingleStore`.

Each shard makes its own two files, which appear under their names when they are complete, with a hash of all that they
depend on. A run that was killed takes those that are there and fit, and makes the others.

The shingles of a batch of texts are written into one array by one kernel, sorted document by document (numpy sorts with
AVX-512) and made unique in place: 300 MB/s of flagged text on one core.
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
from pilekit.corpus import Shard
from pilekit.dedup.bits import Bits
from pilekit.dedup.flagged_texts import FlaggedDocuments, flagged_texts
from pilekit.dedup.population import Population
from pilekit.dedup.shingle_store import KEY_WORDS, WORD, Int64, ShingleStore, extents_file, sets_file
from pilekit.dedup.shingles import Bytes, UInt64, begin_document, next_shingles
from pilekit.engine import Advance, map_shards, usable_cpus
from pilekit.kernels import compiled
from pilekit.shards.atomic import write_atomically

LARGE_BYTES = 16 << 20
"""The shingles of a longer text are counted before memory is taken for them: there may be four bytes' worth for each
of its bytes, but hardly ever are."""


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
    if any(shard.path.startswith("memory://") for shard in shards):
        jobs = 1  # Only this process has it.
    processes = max(1, min(usable_cpus() if jobs is None else jobs, len(work)))
    store = functools.partial(_store_shard, folder=folder, threads=max(1, usable_cpus() // processes))
    map_shards(store, work, jobs=jobs, names=[shard.name for shard in shards], on_progress=advance)
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
    extents, sets = extents_file(folder, place), sets_file(folder, place)
    if _is_there(extents, sets, words, len(documents)):
        advance(header.size)
        return
    documents.check_unchanged()
    # The extents are complete last: where they are, the sets are.
    with write_atomically(extents) as extents_out:
        extents_out.write(words.data)
        extents_out.write(bytes(WORD))
        with write_atomically(sets) as sets_out:
            end = 0
            for values, sizes in _sets(flagged_texts(documents, advance, ahead=threads > 1), header.ngram, threads):
                sets_out.write(values.data)
                ends = end + np.cumsum(sizes)
                extents_out.write(ends.astype(np.uint64).data)
                end = int(ends[-1])
        documents.check_unchanged()


def _is_there(extents: Path, sets: Path, key: UInt64, documents: int) -> bool:
    """Whether both files are there and were made of what has this key."""
    try:
        if extents.stat().st_size != (KEY_WORDS + documents + 1) * WORD:
            return False
        with extents.open("rb") as file:
            there = np.frombuffer(file.read(KEY_WORDS * WORD), dtype=np.uint64)
            file.seek(-WORD, 2)
            values = int.from_bytes(file.read(WORD), "little")
        return bool(np.array_equal(there, key)) and sets.stat().st_size == values * WORD
    except FileNotFoundError:
        return False


def _sets(batches: Iterator[list[bytes]], ngram: int, threads: int) -> Iterator[tuple[UInt64, Int64]]:
    """The sets of each batch of texts, one behind the other, and the size of each."""
    waiting: deque[Future[tuple[UInt64, Int64]]] = deque()
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        for batch in batches:
            data, offsets = _joined(batch)
            large = len(data) > LARGE_BYTES
            while waiting and (large or len(waiting) > threads):
                yield waiting.popleft().result()
            if large or threads <= 1:  # Several of the large ones at a time might not fit into memory.
                yield shingle_sets(data, offsets, ngram)
            else:
                waiting.append(pool.submit(shingle_sets, data, offsets, ngram))
        for future in waiting:
            yield future.result()


def _joined(texts: list[bytes]) -> tuple[Bytes, Int64]:
    """The texts one behind the other, and where each begins, int64 [texts + 1]."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return np.frombuffer(b"".join(texts), dtype=np.uint8), offsets


def shingle_sets(data: Bytes, offsets: Int64, ngram: int) -> tuple[UInt64, Int64]:
    """(the shingle sets of all documents, one behind the other, each ascending; the size of each).

    data, offsets   the UTF-8 bytes of the documents and where each begins, int64 [documents + 1]
    """
    documents = len(offsets) - 1
    room = len(data) // 2 + 2 * documents if len(data) <= LARGE_BYTES else _count(data, offsets, ngram)
    values, ends = np.empty(room + 1, dtype=np.uint64), np.empty(documents, dtype=np.int64)
    _fill(data, offsets, ngram, values, ends)
    begin = 0
    for end in ends.tolist():
        values[begin:end].sort()
        begin = end
    sizes = _make_unique(values, ends)
    return values[: sizes.sum()], sizes


@compiled()
def _count(data: Bytes, offsets: Int64, ngram: int) -> int:
    state, some = np.empty(5 + ngram, dtype=np.uint64), np.empty(4096, dtype=np.uint64)
    total = 0
    for document in range(len(offsets) - 1):
        begin_document(state, offsets[document], ngram)
        count = len(some)
        while count == len(some):
            count = next_shingles(data, offsets[document], offsets[document + 1], ngram, state, some)
            total += count
    return total


@compiled()
def _fill(data: Bytes, offsets: Int64, ngram: int, values: UInt64, ends: Int64) -> None:
    """Write all shingles of all documents; there must be room for one more."""
    state = np.empty(5 + ngram, dtype=np.uint64)
    end = 0
    for document in range(len(offsets) - 1):
        begin_document(state, offsets[document], ngram)
        end += next_shingles(data, offsets[document], offsets[document + 1], ngram, state, values[end:])
        ends[document] = end


@compiled()
def _make_unique(values: UInt64, ends: Int64) -> Int64:
    """Leave each value of a document, which are sorted, once, and close the gaps; returns the sizes."""
    sizes = np.empty(len(ends), dtype=np.int64)
    begin = into = 0
    for document in range(len(ends)):
        first = into
        for i in range(begin, ends[document]):
            if i == begin or values[i] != values[i - 1]:
                values[into] = values[i]
                into += 1
        sizes[document] = into - first
        begin = ends[document]
    return sizes
