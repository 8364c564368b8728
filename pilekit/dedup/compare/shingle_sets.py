"""Shingle sets of whole batches of texts, and of a text of any length.

All shingles of a batch are written into one array by one kernel, sorted document by document (numpy sorts with AVX-512)
and made unique in place: 570 MB/s on one core.

The shingles of a 500 MB text may take 2 GB. They are counted, by their highest byte, and then found anew for one range
of values after the other, each small enough to be held. A table of values seen lately keeps a text that repeats itself
a million times from filling one range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.dedup.sketch.shingles import Bytes, UInt64, begin_document, next_shingles
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

RANGE_VALUES = 8 << 20
"""Held at a time of one text."""

_AT_A_TIME = 4096
_SEEN_LATELY = 1 << 16


class Sets(NamedTuple):
    """Shingle sets, one behind the other."""

    values: UInt64
    """Each set ascending; the first may have begun, and the last may go on, in other parts."""
    sizes: Int64
    """Of the sets that end here."""


def shingle_sets(data: Bytes, offsets: Int64, ngram: int) -> Sets:
    """The shingle sets of all documents.

    data, offsets   the UTF-8 bytes of the documents and where each begins, int64 [documents + 1]
    """
    documents = len(offsets) - 1
    # Every word but the last has a byte behind it that is none; and there must be room for one more than there are.
    values = np.empty(len(data) // 2 + 2 * documents + 1, dtype=np.uint64)
    ends = np.empty(documents, dtype=np.int64)
    _fill(data, offsets, ngram, values, ends)
    begin = 0
    for end in ends.tolist():
        values[begin:end].sort()
        begin = end
    sizes = _make_unique(values, ends)
    return Sets(values[: sizes.sum()], sizes)


def large_sets(data: Bytes, offsets: Int64, ngram: int) -> Iterator[Sets]:
    """The same of few large documents, in parts."""
    for document in range(len(offsets) - 1):
        begin, end = int(offsets[document]), int(offsets[document + 1])
        counts = _counts(data, begin, end, ngram)
        size = 0
        for lowest, highest in _ranges(counts):
            values = np.empty(int(counts[lowest : highest + 1].sum()), dtype=np.uint64)
            _fill_range(data, begin, end, ngram, lowest, highest, values)
            values.sort()
            values = values[: int(_make_unique(values, np.array([len(values)])).sum())]
            size += len(values)
            yield Sets(values, np.array([size] if highest == 255 else [], dtype=np.int64))
            del values


def _ranges(counts: Int64) -> Iterator[tuple[int, int]]:
    """Ranges of highest bytes, first and last, with so few values that they can be held."""
    first = held = 0
    for byte in range(256):
        if byte > first and held + counts[byte] > RANGE_VALUES:
            yield first, byte - 1
            first, held = byte, 0
        held += counts[byte]
    yield first, 255


@compiled()
def _fill(data: Bytes, offsets: Int64, ngram: int, values: UInt64, ends: Int64) -> None:
    """Write all shingles of all documents, and where those of each end."""
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


@compiled()
def _counts(data: Bytes, begin: int, end: int, ngram: int) -> Int64:
    """How many shingles a document has of each highest byte, those left out that were seen lately; int64 [256]."""
    counts = np.zeros(256, dtype=np.int64)
    state, some, lately = np.empty(5 + ngram, dtype=np.uint64), np.empty(_AT_A_TIME, dtype=np.uint64), _nothing_lately()
    begin_document(state, begin, ngram)
    count = len(some)
    while count == len(some):
        count = next_shingles(data, begin, end, ngram, state, some)
        for value in some[:count]:
            counts[value >> np.uint64(56)] += _is_new(lately, value)
    return counts


@compiled()
def _fill_range(data: Bytes, begin: int, end: int, ngram: int, lowest: int, highest: int, values: UInt64) -> None:
    """Write the shingles of a document that have these highest bytes, as they were counted."""
    state, some, lately = np.empty(5 + ngram, dtype=np.uint64), np.empty(_AT_A_TIME, dtype=np.uint64), _nothing_lately()
    begin_document(state, begin, ngram)
    count, into = len(some), 0
    while count == len(some):
        count = next_shingles(data, begin, end, ngram, state, some)
        for value in some[:count]:
            if lowest <= np.int64(value >> np.uint64(56)) <= highest and _is_new(lately, value):
                values[into] = value
                into += 1


@compiled()
def _nothing_lately() -> UInt64:
    """A table in which no value is at its place."""
    return np.arange(_SEEN_LATELY).astype(np.uint64) ^ np.uint64(1)


@compiled()
def _is_new(lately: UInt64, value: np.uint64) -> bool:
    place = value & np.uint64(_SEEN_LATELY - 1)
    if lately[place] == value:
        return False
    lately[place] = value
    return True
