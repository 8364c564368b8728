"""Repetition within a text: equal lines, paragraphs and word n-grams, found by numbering.

Equal keys get one number, the index of the first. A word's key is the 64-bit hash of its bytes. An n-gram's key is
the pair of the numbers of its two (n-1)-grams, so n-grams are compared exactly. A repeated n-gram's two (n-1)-grams are
repeated too, so n-grams are looked up only where both are. Few places are left after the 2-grams.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.workers.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

_BASIS = np.uint64(0xCBF29CE484222325)
_PER_EIGHT = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)

LONGEST = 10


@compiled()
def _hashes(data: Bytes, begin: Int64, end: Int64) -> UInt64:
    """A hash of each piece, made of eight bytes at a time; each step is a bijection of the eight bytes."""
    hashes = np.empty(len(begin), np.uint64)
    for piece in range(len(begin)):
        at, stop = np.uint64(begin[piece]), np.uint64(end[piece])
        value = _BASIS ^ (stop - at)
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
        hashes[piece] = value ^ (value >> np.uint64(29))
    return hashes


@compiled()
def characters(data: Bytes, begin: Int64, end: Int64) -> Int64:
    """The characters of each piece of UTF-8, int64 [pieces]."""
    counts = np.zeros(len(begin), np.int64)
    for piece in range(len(begin)):
        for at in range(begin[piece], end[piece]):
            counts[piece] += (data[at] & np.uint8(0xC0)) != np.uint8(0x80)
    return counts


@compiled()
def _number(keys: UInt64) -> tuple[Int32, Int32]:
    """(the index of the first equal key, how often the key occurs if it is the first, else 0), int32 [keys]."""
    numbers, counts = np.empty(len(keys), np.int32), np.zeros(len(keys), np.int32)
    bits = 1
    while 1 << bits < 2 * len(keys):
        bits += 1
    shift, mask = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
    slots = np.full(1 << bits, -1, np.int32)
    for i in range(len(keys)):
        slot = (keys[i] * _SPREAD) >> shift
        while slots[slot] >= 0 and keys[slots[slot]] != keys[i]:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = i
        numbers[i] = slots[slot]
        counts[slots[slot]] += 1
    return numbers, counts


@compiled()
def repeated_pieces(data: Bytes, begin: Int64, end: Int64, starts: Int64) -> npt.NDArray[np.bool_]:
    """Whether each piece repeats an earlier piece of its document, bool [pieces]."""
    repeated = np.zeros(len(begin), np.bool_)
    for document in range(len(starts) - 1):
        first, last = starts[document], starts[document + 1]
        numbers, _ = _number(_hashes(data, begin[first:last], end[first:last]))
        repeated[first:last] = numbers != np.arange(last - first)
    return repeated


@compiled()
def repeated_ngrams(data: Bytes, begin: Int64, end: Int64, before: Int64, starts: Int64) -> Int64:
    """Characters of repeated word n-grams, int64 [11, documents].

    before   characters of all words before each word, int64 [words + 1]; the other columns are those of `Words`

    Row 2 to 4: count times characters, blanks between words included, of the most frequent n-gram that occurs twice or
    more; of equally frequent ones the first counts. Row 5 to 10: the characters of n-grams that a walk over the words
    meets again; the walk continues after such an n-gram.
    """
    repeated_chars = np.zeros((LONGEST + 1, len(starts) - 1), np.int64)
    for document in range(len(starts) - 1):
        first, last = starts[document], starts[document + 1]
        keys, places = _hashes(data, begin[first:last], end[first:last]), np.arange(first, last)
        size = last - first
        for ngram in range(1, LONGEST + 1):
            if size < 2:
                break
            numbers, counts = _number(keys[:size])
            if ngram >= 5:
                occurred, resume_at = np.zeros(size, np.bool_), first
                for i in range(size):
                    if places[i] >= resume_at:
                        if occurred[numbers[i]]:
                            resume_at = places[i] + ngram
                            repeated_chars[ngram, document] += before[resume_at] - before[places[i]]
                        occurred[numbers[i]] = True
            elif ngram >= 2:
                top = np.argmax(counts)
                if counts[top] >= 2:
                    chars = before[places[top] + ngram] - before[places[top]]
                    repeated_chars[ngram, document] = counts[top] * (chars + ngram - 1)
            remaining = 0
            for i in range(size - 1):
                if places[i + 1] == places[i] + 1 and counts[numbers[i]] > 1 and counts[numbers[i + 1]] > 1:
                    keys[remaining] = (np.uint64(numbers[i]) << np.uint64(32)) | np.uint64(numbers[i + 1])
                    places[remaining] = places[i]
                    remaining += 1
            size = remaining
    return repeated_chars
