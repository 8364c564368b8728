"""The shingle sets of the candidates, mapped into memory and found by id.

Only candidates are compared, so only their sets are stored: about 1.4 bytes for each byte of their text. Each shard has
two files of 64-bit words:

    <place>.sets    the sets in the order of their documents, each ascending
    <place>.ends    0, then the end of each document's set; without a set, the end of the document before
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from pilekit.dedup.sketch.shingles import Int64, UInt64
from pilekit.errors import PilekitError
from pilekit.workers.kernels import compiled

WORD = 8


class MappedSets(NamedTuple):
    """The sets as kernels see them.

    base             the id of each shard's first document, then the number of all documents; int64 [shards + 1]
    sets_at, ends_at the addresses of each shard's files in memory; uint64 [shards]
    """

    base: Int64
    sets_at: UInt64
    ends_at: UInt64


class ShingleStore:
    """The shingle sets in a folder that `store_shingles` has written; `base` is that of the document table."""

    def __init__(self, folder: Path, base: Int64):
        self._maps: list[mmap.mmap] = []
        addresses = np.zeros((2, len(base) - 1), dtype=np.uint64)
        for place, documents in enumerate(np.diff(base).tolist()):
            ends = self._map(ends_file(folder, place), documents + 1)
            values = self._map(sets_file(folder, place), int(ends[-1]))
            addresses[:, place] = values.ctypes.data, ends.ctypes.data
        self.mapped = MappedSets(base, addresses[0], addresses[1])

    def _map(self, path: Path, words: int) -> UInt64:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size != words * WORD:
                    raise PilekitError(f"{path}: is damaged (it has another size); remove it, run again")
                if not size:
                    return np.empty(0, dtype=np.uint64)
                self._maps.append(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise PilekitError(f"{path}: cannot be read: {error.strerror}; run again") from error
        return np.frombuffer(self._maps[-1], dtype=np.uint64)

    def release(self) -> None:
        """Release the pages read from this process's memory; the system's page cache may keep them."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def sets_file(folder: Path, place: int) -> Path:
    """The file with the sets of the shard at this place of the document table."""
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
def _words_at(address: np.uint64, count: int) -> UInt64:
    return carray(_pointer(address), count)


@compiled()
def find_set(mapped: MappedSets, id: int) -> UInt64:
    """The set of a candidate; for kernels."""
    place, end_place = 0, len(mapped.base) - 1
    while end_place - place > 1:  # by hand: loading a kernel with np.searchsorted in it imports SciPy
        middle = (place + end_place) // 2
        if mapped.base[middle] <= id:
            place = middle
        else:
            end_place = middle
    ends = _words_at(mapped.ends_at[place] + np.uint64(WORD) * np.uint64(id - mapped.base[place]), 2)
    return _words_at(mapped.sets_at[place] + np.uint64(WORD) * ends[0], int(ends[1] - ends[0]))
