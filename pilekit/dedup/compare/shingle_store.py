"""The shingle sets of the documents that may have a duplicate, mapped into memory and looked up by id.

Only candidates are compared, so only their sets are kept, about 1.4 bytes on disk for a byte of their text. Each shard
has two files of 64-bit words, without anything for documents in no pair:

    <place>.sets    the sets in the order of their documents, each ascending
    <place>.ends    0, then the end of each set

The number of candidates before a document tells which set is its own. The candidates' bitmap is in memory, with a count
for every 512 of its bits: a bit and an eighth per document, whatever the sets take on disk.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from pilekit.dedup.bits import Bits, bits_in
from pilekit.dedup.sketch.shingles import UInt64
from pilekit.errors import PilekitError, visible
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

WORD = 8


class MappedSets(NamedTuple):
    """The sets as kernels see them; `find_set` looks them up.

    base             the id of each shard's first document, and the number of all documents; int64 [shards + 1]
    words, before    the bitmap of the candidates, and how many there are before every eighth word of it
    first            how many candidates there are before each shard; int64 [shards + 1]
    sets_at, ends_at the addresses of each shard's files in memory; uint64 [shards]
    looked_at        where sets were looked at since the last release, for kernels to remember; uint64 [4096]
    """

    base: Int64
    words: UInt64
    before: Int64
    first: Int64
    sets_at: UInt64
    ends_at: UInt64
    looked_at: UInt64


class ShingleStore:
    """The shingle sets of the candidates.

    folder     holds the files, which `second_pass.store_shingles` has written
    base       the id of each shard's first document, and the number of all documents; int64 [shards + 1]
    flagged    bit per id, first bit lowest: the documents that have a set here; uint8 [at least ids / 8]
    """

    def __init__(self, folder: Path, base: Int64, flagged: Bits):
        words = np.zeros((len(flagged) + 63) // 64 * 8 + 8, dtype=np.uint64)
        words.view(np.uint8)[: len(flagged)] = flagged
        counts = np.bitwise_count(words).reshape(-1, 8).sum(axis=1, dtype=np.int64)
        before = np.cumsum(counts) - counts
        first = np.array([_set_bits_before(words, before, id) for id in base.tolist()], dtype=np.int64)
        self._maps: list[mmap.mmap] = []
        addresses = np.zeros((2, len(base) - 1), dtype=np.uint64)
        for place, documents in enumerate(np.diff(first).tolist()):
            ends = self._map(ends_file(folder, place), documents + 1)
            values = self._map(sets_file(folder, place), int(ends[-1]))
            addresses[:, place] = values.ctypes.data, ends.ctypes.data
        self.mapped = MappedSets(
            base, words, before, first, addresses[0], addresses[1], np.zeros(1 << 12, dtype=np.uint64)
        )

    def _map(self, path: Path, words: int) -> UInt64:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size != words * WORD:
                    raise PilekitError(f"{visible(str(path))}: is damaged (it has another size); remove it, run again")
                if not size:
                    return np.empty(0, dtype=np.uint64)
                self._maps.append(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise PilekitError(f"{visible(str(path))}: cannot be read: {error.strerror}; run again") from error
        return np.frombuffer(self._maps[-1], dtype=np.uint64)

    def release(self) -> None:
        """Take what was read out of this process's memory; the system's page cache may keep it."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)
        self.mapped.looked_at[:] = 0

    def get(self, id: int) -> UInt64:
        """The shingle set of a candidate, ascending."""
        return _copied(self.mapped, id)


def sets_file(folder: Path, place: int) -> Path:
    """The file with the sets of the shard at this place of the population."""
    return folder / f"{place}.sets"


def ends_file(folder: Path, place: int) -> Path:
    """The file with the ends of the sets."""
    return folder / f"{place}.ends"


def _pointer_code(typing_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint64)(types.uint64), code  # type: ignore[no-untyped-call]


_pointer = cast(Callable[[np.uint64], Any], intrinsic(_pointer_code))


@compiled()
def words_at(address: np.uint64, count: int) -> UInt64:
    """The words at an address; for kernels."""
    return carray(_pointer(address), count)


@compiled()
def find_set(mapped: MappedSets, id: int) -> tuple[np.uint64, int]:
    """(address, size) of the set of a candidate; for kernels."""
    place, end_place = 0, len(mapped.base) - 1
    while end_place - place > 1:  # by hand: loading a kernel with np.searchsorted in it imports SciPy
        middle = (place + end_place) // 2
        if mapped.base[middle] <= id:
            place = middle
        else:
            end_place = middle
    entry = _set_bits_before(mapped.words, mapped.before, id) - mapped.first[place]
    ends = words_at(mapped.ends_at[place], entry + 2)
    begin, end = ends[entry], ends[entry + 1]
    return mapped.sets_at[place] + np.uint64(WORD) * begin, int(end - begin)


@compiled()
def _copied(mapped: MappedSets, id: int) -> UInt64:
    address, size = find_set(mapped, id)
    return words_at(address, size).copy()


@compiled()
def _set_bits_before(words: UInt64, before: Int64, id: int) -> int:
    """How many bits are set before bit `id`; `before` has the counts for every eighth word."""
    word = id >> 6
    count = before[word >> 3]
    for earlier in range(word & ~7, word):
        count += bits_in(words[earlier])
    return int(count + bits_in(words[word] & ((np.uint64(1) << np.uint64(id & 63)) - np.uint64(1))))
