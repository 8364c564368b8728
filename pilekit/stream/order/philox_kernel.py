"""The compiled loop that makes the random words of a unit's order.

numpy's Philox makes the same words, but one object of it takes as long as some hundred words, and a stream under a
schedule orders thousands of units of a few documents.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import uint64, void

from pilekit.workers.kernels import compiled

_FIRST, _SECOND = uint64(0xD2E7470EE14C6C93), uint64(0xCA5A826395121157)
_FIRST_STEP, _SECOND_STEP = uint64(0x9E3779B97F4A7C15), uint64(0xBB67AE8584CAA73B)
_HALF, _LOW = uint64(32), uint64(0xFFFFFFFF)


@compiled(uint64(uint64, uint64))
def _high_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """The upper 64 bits of the product of two numbers."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF)


@compiled(void(uint64, uint64, uint64[::1]))
def philox_words(low: int, high: int, words: npt.NDArray[np.uint64]) -> None:
    """Fill `words` with the first words of `np.random.Philox(key=high << 64 | low)`: Philox4x64 with 10 rounds."""
    block = uint64(0)
    for begin in range(0, len(words), 4):
        block += uint64(1)
        a, b, c, d, first_key, second_key = block, uint64(0), uint64(0), uint64(0), uint64(low), uint64(high)
        for _ in range(10):
            a, b, c, d = (
                _high_product(_SECOND, c) ^ b ^ first_key,
                _SECOND * c,
                _high_product(_FIRST, a) ^ d ^ second_key,
                _FIRST * a,
            )
            first_key += _FIRST_STEP
            second_key += _SECOND_STEP
        words[begin] = a
        for place, word in enumerate((b, c, d)):
            if begin + 1 + place < len(words):
                words[begin + 1 + place] = word
