"""The shingle sets of the documents that may have a duplicate: on disk, looked up by id.

Only these documents are compared, so only their sets are kept, about 1.4 bytes on disk for a byte of their text. Each
shard has three files, with nothing for documents that are in no pair:

    <place>.sets       the sets one behind the other, each ascending; uint64
    <place>.bits       their bitmaps (difference.py) one behind the other; uint64
    <place>.extents    what all was made of (two words, see second_pass.py); then, for each document, where its set and
                       its bitmap begin; and where the last ones end

Which set is a document's follows from how many flagged documents come before it: the bitmap of those is in memory, with
a count for every 512 of its bits. So memory is a bit and an eighth per document, whatever the sets take on disk. Sets
are read in the order in which they lie there; what is read often stays in the system's page cache, so there is none
here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.bits import Bits, bits_in
from pilekit.dedup.sketch.shingles import UInt64, common
from pilekit.errors import PilekitError, visible
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

WORD = 8
KEY_WORDS = 2
EXTENT_WORDS = 2
PIECE = 1 << 17
"""Values read at a time of sets that are compared without being loaded: 1 MiB of each."""

_NEAR = 64


class Extents(NamedTuple):
    """Where sets and their bitmaps lie in the files of their shards, in words, and their sizes; int64 [documents]."""

    begins: Int64
    sizes: Int64
    bit_begins: Int64
    words: Int64

    def take(self, chosen: npt.NDArray[np.integer]) -> Extents:
        """Those of some of the documents."""
        return Extents(*(column[chosen] for column in self))


class ShingleStore:
    """The shingle sets of flagged documents.

    folder    holds the files, which `second_pass.store_shingles` has written
    base      the id of each shard's first document, and the number of all documents; int64 [shards + 1]
    flagged   bit per id, first bit lowest: the documents that have a set here; uint8 [at least ids / 8]
    """

    def __init__(self, folder: Path, base: Int64, flagged: Bits):
        self.folder, self.base = folder, base
        words = np.zeros((len(flagged) + 63) // 64 * 8 + 8, dtype=np.uint64)
        words.view(np.uint8)[: len(flagged)] = flagged
        self._words = words
        counts = np.bitwise_count(words).reshape(-1, 8).sum(axis=1, dtype=np.int64)
        self._before = np.cumsum(counts) - counts
        self._first = _set_bits_before(words, self._before, base)

    def extents(self, ids: npt.NDArray[np.integer]) -> Extents:
        """Where the sets of these documents are; ids ascending, all flagged."""
        begins, ends = np.empty((2, len(ids), EXTENT_WORDS), dtype=np.int64)
        entries = _set_bits_before(self._words, self._before, ids.astype(np.int64))
        for place, chosen in self._by_shard(ids):
            wanted = entries[chosen] - self._first[place]
            with _opened(extents_file(self.folder, place)) as file:
                # Entries that lie near each other are read at once, with what is between them.
                for part in _split(wanted, np.diff(wanted) > _NEAR):
                    first, count = int(wanted[part.start]), int(wanted[part.stop - 1] - wanted[part.start]) + 2
                    found = np.empty((count, EXTENT_WORDS), dtype=np.uint64)
                    file.read_into(found.reshape(-1), KEY_WORDS + EXTENT_WORDS * first)
                    where = slice(chosen.start + part.start, chosen.start + part.stop)
                    begins[where] = found[wanted[part] - first]
                    ends[where] = found[wanted[part] - first + 1]
        return Extents(begins[:, 0], (ends - begins)[:, 0], begins[:, 1], (ends - begins)[:, 1])

    def sets(self, ids: npt.NDArray[np.integer], extents: Extents) -> UInt64:
        """The sets of these documents, one behind the other; ids ascending, with their `extents`."""
        return self._load(sets_file, ids, extents.begins, extents.sizes)

    def bits(self, ids: npt.NDArray[np.integer], extents: Extents) -> UInt64:
        """Their bitmaps, in the same way."""
        return self._load(bits_file, ids, extents.bit_begins, extents.words)

    def _load(
        self, file_of: Callable[[Path, int], Path], ids: npt.NDArray[np.integer], begins: Int64, sizes: Int64
    ) -> UInt64:
        loaded, ends = np.empty(int(sizes.sum()), dtype=np.uint64), np.cumsum(sizes)
        for place, chosen in self._by_shard(ids):
            begin, size, end = begins[chosen], sizes[chosen], ends[chosen]
            # What lies one behind the other is read at once.
            last = np.append(begin[1:] != begin[:-1] + size[:-1], True)
            first = np.append(True, last[:-1])
            parts = zip(begin[first].tolist(), (end - size)[first].tolist(), end[last].tolist(), strict=True)
            with _opened(file_of(self.folder, place)) as file:
                for at, to, until in parts:
                    file.read_into(loaded[to:until], at)
        return loaded

    def get(self, id: int) -> UInt64:
        """The shingle set of one flagged document, ascending."""
        ids = np.array([id], dtype=np.int64)
        return self.sets(ids, self.extents(ids))

    def shared_if_enough(self, one: int, other: int, enough: int) -> int:
        """How many shingles two flagged documents share, or -1 if fewer than `enough`; neither set is loaded whole."""
        ids = np.array([one, other], dtype=np.int64)
        places = np.searchsorted(self.base, ids, side="right") - 1
        order = np.argsort(ids)
        begins, sizes = (column[np.argsort(order)] for column in self.extents(ids[order])[:2])
        with (
            _opened(sets_file(self.folder, int(places[0]))) as first,
            _opened(sets_file(self.folder, int(places[1]))) as second,
        ):
            one_set = _Pieces(first, int(begins[0]), int(sizes[0]))
            other_set = _Pieces(second, int(begins[1]), int(sizes[1]))
            return _shared_if_enough(one_set, other_set, enough)

    def _by_shard(self, ids: npt.NDArray[np.integer]) -> list[tuple[int, slice]]:
        """The shards in which ids, ascending, lie, and which of them each has."""
        places = np.searchsorted(self.base, ids, side="right") - 1
        return [(int(places[part.start]), part) for part in _split(places, places[1:] != places[:-1])]


def sets_file(folder: Path, place: int) -> Path:
    """The file with the sets of the shard at this place of the population."""
    return folder / f"{place}.sets"


def bits_file(folder: Path, place: int) -> Path:
    """The file with their bitmaps."""
    return folder / f"{place}.bits"


def extents_file(folder: Path, place: int) -> Path:
    """The file that tells where they lie."""
    return folder / f"{place}.extents"


class _File:
    """A file of uint64, of which any part is read."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise PilekitError(f"{visible(str(path))}: cannot be read: {error.strerror}; run again") from error

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read_into(self, values: UInt64, first: int) -> None:
        """Fill `values` with what lies from value `first` on."""
        view, offset = values.data.cast("B"), first * WORD
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if not count:
                raise PilekitError(f"{visible(str(self.path))}: is shorter than it was; remove it and run again")
            view, offset = view[count:], offset + count


def _opened(path: Path) -> _File:
    return _File(path)


class _Pieces:
    """A set on disk, read a piece at a time; `left` is how many values are still to come."""

    def __init__(self, file: _File, begin: int, size: int):
        self._file, self._at, self.left = file, begin, size

    def next(self) -> UInt64:
        """The next values; none at the end."""
        values = np.empty(min(PIECE, self.left), dtype=np.uint64)
        self._file.read_into(values, self._at)
        self._at, self.left = self._at + len(values), self.left - len(values)
        return values


def _shared_if_enough(one: _Pieces, other: _Pieces, enough: int) -> int:
    shared = 0
    left, right = one.next(), other.next()
    while shared + min(one.left + len(left), other.left + len(right)) >= enough:
        if not len(left) or not len(right):
            return shared
        # Up to here both are known.
        last = min(left[-1], right[-1])
        i, j = np.searchsorted(left, last, side="right"), np.searchsorted(right, last, side="right")
        shared += common(left[:i], right[:j])
        left, right = left[i:], right[j:]
        if not len(left):
            left = one.next()
        if not len(right):
            right = other.next()
    return -1


def _split(values: Int64, breaks: npt.NDArray[np.bool_]) -> list[slice]:
    """The parts into which `values` falls; breaks[i]: between i and i + 1."""
    if not len(values):
        return []
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(values)]
    return [slice(begin, end) for begin, end in pairwise(cuts)]


@compiled()
def _set_bits_before(words: UInt64, before: Int64, ids: Int64) -> Int64:
    """How many bits are set before each id; `before` has the counts for every eighth word."""
    out = np.empty(len(ids), dtype=np.int64)
    for i in range(len(ids)):
        word = ids[i] >> 6
        count = before[word >> 3]
        for earlier in range(word & ~7, word):
            count += bits_in(words[earlier])
        out[i] = count + bits_in(words[word] & ((np.uint64(1) << np.uint64(ids[i] & 63)) - np.uint64(1)))
    return out
