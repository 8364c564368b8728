"""What a text repeats of itself: equal lines, paragraphs and word n-grams, found by numbering.

Equal keys get one number, that of the first of them. A word's key is the 64-bit hash of its bytes. An n-gram's key is
the pair of the numbers of its two (n-1)-grams, so n-grams are compared exactly. A repeated n-gram's two (n-1)-grams are
repeated too: only where both are, n-grams are looked up, and few places are left after the 2-grams.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_BASIS = np.uint64(0xCBF29CE484222325)
_PER_EIGHT = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)

LONGEST = 10
TOP = (2, 3, 4)
"""The n of the n-grams of which the most frequent one is found."""


@compiled()
def _hash(data: Bytes, begin: int, end: int) -> np.uint64:
    """A hash of `data[begin:end]`, eight bytes at a time; each step is a bijection of the eight bytes."""
    value = _BASIS ^ np.uint64(end - begin)
    at, stop = np.uint64(begin), np.uint64(end)
    while stop - at >= np.uint64(8):
        eight = np.uint64(0)
        for i in range(8):  # Compiled into one load.
            eight |= np.uint64(data[at + np.uint64(i)]) << np.uint64(8 * i)
        value = (value ^ eight) * _PER_EIGHT
        value ^= value >> np.uint64(32)
        at += np.uint64(8)
    eight = np.uint64(0)
    while at < stop:
        eight = (eight << np.uint64(8)) | np.uint64(data[at])
        at += np.uint64(1)
    value = (value ^ eight) * _PER_EIGHT
    value = (value ^ (value >> np.uint64(32))) * _SPREAD
    return value ^ (value >> np.uint64(29))


@compiled()
def characters(data: Bytes, begin: int, end: int) -> int:
    """The characters of the UTF-8 `data[begin:end]`."""
    count = 0
    for at in range(begin, end):
        count += (data[at] & np.uint8(0xC0)) != np.uint8(0x80)
    return count


@compiled()
def _number(keys: UInt64, numbers: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]) -> None:
    """Give each key the index of the first equal one, and count each at that index."""
    bits = 1
    while 1 << bits < 2 * len(keys):
        bits += 1
    shift, mask = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
    slots = np.full(1 << bits, -1, np.int32)
    for i in range(len(keys)):
        counts[i] = 0
        slot = (keys[i] * _SPREAD) >> shift
        while slots[slot] >= 0 and keys[slots[slot]] != keys[i]:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = i
        numbers[i] = slots[slot]
        counts[slots[slot]] += 1


@compiled()
def repeated_spans(data: Bytes, begin: Int64, end: Int64, of: Int64) -> tuple[Int64, Int64]:
    """(pieces that repeat an earlier piece of their document, their characters), int64 [documents]."""
    repeated, chars = np.zeros(len(of) - 1, np.int64), np.zeros(len(of) - 1, np.int64)
    for document in range(len(of) - 1):
        first = of[document]
        size = of[document + 1] - first
        if size < 2:
            continue
        keys, numbers = np.empty(size, np.uint64), np.empty(size, np.int32)
        for i in range(size):
            keys[i] = _hash(data, begin[first + i], end[first + i])
        _number(keys, numbers, np.empty(size, np.int32))
        for i in range(size):
            if numbers[i] != i:
                repeated[document] += 1
                chars[document] += characters(data, begin[first + i], end[first + i])
    return repeated, chars


@compiled()
def _chars_of(chars: npt.NDArray[np.uint32], first: int, words: int) -> int:
    """The characters of some words together."""
    total = 0
    for i in range(first, first + words):
        total += int(chars[i])
    return total


@compiled()
def _walked(
    chars: npt.NDArray[np.uint32],
    first: int,
    ngram: int,
    places: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int32],
) -> int:
    """The characters of n-grams that a walk over a document's words meets again; it goes on behind such an n-gram.

    places    the words at which n-grams begin that may be repeated, ascending
    numbers   equal for equal n-grams
    """
    met = np.zeros(len(places), np.bool_)
    total = go_on = 0
    for i in range(len(places)):
        if places[i] < go_on:
            continue
        if met[numbers[i]]:
            total += _chars_of(chars, first + places[i], ngram)
            go_on = places[i] + ngram
        met[numbers[i]] = True
    return total


@compiled()
def repeated_ngrams(
    data: Bytes,
    begin: Int64,
    end: Int64,
    chars: npt.NDArray[np.uint32],
    kinds: Bytes,
    of: Int64,
) -> Int64:
    """Characters of repeated word n-grams, int64 [11, documents]; the arguments are `Words`.

    Row 2 to 4: count times characters, blanks between words included, of the most frequent n-gram that occurs twice or
    more; of equally frequent ones the first counts. Row 5 to 10: the sum of `_walked`.
    """
    found = np.zeros((LONGEST + 1, len(of) - 1), np.int64)
    for document in range(len(of) - 1):
        first = of[document]
        size = of[document + 1] - first
        keys, places = np.empty(size, np.uint64), np.empty(size, np.int32)
        numbers, counts = np.empty(size, np.int32), np.empty(size, np.int32)
        for i in range(size):
            keys[i] = _hash(data, begin[first + i], end[first + i])
            places[i] = i
        for ngram in range(1, LONGEST + 1):
            if size < 2:
                break
            _number(keys[:size], numbers, counts)
            if ngram >= 5:
                found[ngram, document] = _walked(chars, first, ngram, places[:size], numbers)
            elif ngram >= 2:
                top = 0
                for i in range(1, size):
                    if counts[i] > counts[top]:
                        top = i
                if counts[top] >= 2:
                    found[ngram, document] = counts[top] * (_chars_of(chars, first + places[top], ngram) + ngram - 1)
            kept = 0
            for i in range(size - 1):
                if places[i + 1] == places[i] + 1 and counts[numbers[i]] > 1 and counts[numbers[i + 1]] > 1:
                    keys[kept] = (np.uint64(numbers[i]) << np.uint64(32)) | np.uint64(numbers[i + 1])
                    places[kept] = places[i]
                    kept += 1
            size = kept
    return found
