"""Which of many 64-bit values may occur twice, in two passes over them and two bits a place.

Most documents share no text and no band key with any other, and sorting is what matching costs. So each value is first
hashed to a place of a table, which remembers "one value" and "several"; in a second pass only values whose place has
several go on to be sorted. With eight places a value, 12 % of the values that are alone go on too: they only cost time.
A smaller table lets more through, and changes no result.

12 ns a value and pass with a table of 20 million documents (sorting takes 200). The table is allocated so that the
kernel may use large pages: on small ones it takes twice as long.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.dedup.sketch.shingles import UInt64
from pilekit.kernels import compiled

_PLACES_PER_VALUE = 8
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_PLACES_PER_WORD = 32


class Repeated:
    """Remembers of each value that is noted whether another may equal it."""

    def __init__(self, values: int, memory: int):
        """For so many values, in at most so many bytes."""
        places = min(_PLACES_PER_VALUE * values, memory // 8 * _PLACES_PER_WORD, 1 << 32)
        words = max(1, places // _PLACES_PER_WORD)
        self._table = np.empty(words, dtype=np.uint64)
        self._table.fill(0)

    @staticmethod
    def memory(values: int) -> int:
        """How many bytes are worth while for so many values."""
        return 8 + values * _PLACES_PER_VALUE // _PLACES_PER_WORD * 8

    def note(self, values: UInt64) -> None:
        """First pass."""
        _note(self._table, values)

    def among(self, values: UInt64) -> npt.NDArray[np.int64]:
        """Second pass: the indices of those of `values` that may have been noted more than once."""
        return _among(self._table, values)


@compiled()
def _place(table: UInt64, value: np.uint64) -> np.uint64:
    places = np.uint64(len(table)) * np.uint64(_PLACES_PER_WORD)
    return ((value * _SPREAD) >> np.uint64(32)) * places >> np.uint64(32)


@compiled()
def _note(table: UInt64, values: UInt64) -> None:
    for value in values:
        place = _place(table, value)
        word = table[place >> np.uint64(5)]
        one = np.uint64(1) << ((place & np.uint64(31)) << np.uint64(1))
        table[place >> np.uint64(5)] = word | one | ((word & one) << np.uint64(1))


@compiled()
def _among(table: UInt64, values: UInt64) -> npt.NDArray[np.int64]:
    found = np.empty(len(values), dtype=np.int64)
    count = 0
    for i in range(len(values)):
        place = _place(table, values[i])
        several = np.uint64(2) << ((place & np.uint64(31)) << np.uint64(1))
        found[count] = i
        count += int((table[place >> np.uint64(5)] & several) != np.uint64(0))
    return found[:count]
