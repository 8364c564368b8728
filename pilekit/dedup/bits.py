"""Bitmaps: one bit for each document, for what is known of all of them at once.

Bit i of a bitmap is bit i mod 8 of byte i div 8, lowest first, as in Arrow and `np.packbits(bitorder="little")`. 210
million documents take 26 MB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pilekit.kernels import compiled

Bits = npt.NDArray[np.uint8]


def no_bits(count: int) -> Bits:
    """A bitmap of `count` bits, none of them set."""
    return np.zeros(-(-count // 8), dtype=np.uint8)


@compiled()
def bit_is_set(bits: Bits, place: np.uint32) -> bool:
    """Whether the bit at a place is set; for kernels."""
    return bool(bits[place >> np.uint32(3)] >> np.uint8(place & np.uint32(7)) & np.uint8(1))


@compiled()
def set_bit(bits: Bits, place: np.uint32) -> None:
    """Set the bit at a place; for kernels."""
    bits[place >> np.uint32(3)] |= np.uint8(1) << np.uint8(place & np.uint32(7))


@compiled()
def set_bits(bits: Bits, places: npt.NDArray[np.uint32]) -> None:
    """Set the bits at these places."""
    for place in places:
        set_bit(bits, place)


@compiled()
def get_bits(bits: Bits, places: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Whether the bit at each of these places is set; bool [places]."""
    found = np.empty(len(places), dtype=np.bool_)
    for i in range(len(places)):
        found[i] = bit_is_set(bits, places[i])
    return found
