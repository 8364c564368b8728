"""In how many values two sets differ at least, told in some nanoseconds.

Beside its values, a set has a bitmap of two to four bits for each of them; a value sets the bit that its lowest bits
name. Wherever two bitmaps differ there is a value that only one of the sets has, another one for each such place. So if
they differ in more places than similar sets may, the sets need not be merged: that is proven, not estimated. With a
threshold of 0.8, hardly a pair of a similarity below 0.65 is merged, which takes fifty times as long, and only the
bitmaps are read of it.

A bitmap has a power of two of words; of two, the larger is folded to the size of the smaller. A set of more than 32,768
values has none: such sets are few, and looking at them costs little by the byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.dedup.bits import bits_in
from pilekit.dedup.sketch.shingles import UInt64
from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

LARGEST = 1 << 15

_BITS_PER_VALUE = 2


@compiled()
def bitmap_words(sizes: Int64) -> Int64:
    """How many words the bitmaps of sets of these sizes have."""
    found = np.zeros(len(sizes), dtype=np.int64)
    for i in range(len(sizes)):
        if sizes[i] <= LARGEST:
            found[i] = 1
            while 64 * found[i] < _BITS_PER_VALUE * sizes[i]:
                found[i] *= 2
    return found


@compiled()
def _fill(values: UInt64, sizes: Int64, words: Int64, found: UInt64) -> None:
    begin = into = 0
    for i in range(len(sizes)):
        if words[i]:
            mask = np.uint64(64 * words[i] - 1)
            for value in values[begin : begin + sizes[i]]:
                bit = value & mask
                found[into + np.int64(bit >> np.uint64(6))] |= np.uint64(1) << (bit & np.uint64(63))
        begin += sizes[i]
        into += words[i]


def bitmaps(values: UInt64, sizes: Int64) -> UInt64:
    """The bitmaps of sets of these sizes, whose values lie one behind the other, as they will."""
    words = bitmap_words(sizes)
    found = np.zeros(words.sum(), dtype=np.uint64)
    _fill(values, sizes, words, found)
    return found


@compiled()
def least_difference(bits: UInt64, one: int, one_words: int, other: int, other_words: int) -> np.int64:
    """How many values at least only one of two sets has; their bitmaps are `bits[one:][:one_words]`, and so on."""
    if one_words > other_words:
        one, one_words, other, other_words = other, other_words, one, one_words
    differing = np.int64(0)
    if one_words == other_words:
        for i in range(one_words):
            differing += bits_in(bits[one + i] ^ bits[other + i])
    else:
        for i in range(one_words):
            folded = np.uint64(0)
            for j in range(i, other_words, one_words):
                folded |= bits[other + j]
            differing += bits_in(bits[one + i] ^ folded)
    return differing
