"""One bit per document: what is remembered of all of them at once.

Bit i of a bitmap is bit i mod 8 of byte i div 8, the lowest first, as Arrow and `np.packbits(bitorder="little")` have
it. 210 million documents take 26 MB.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, visible
from pilekit.kernels import compiled

Bits = npt.NDArray[np.uint8]


def no_bits(count: int) -> Bits:
    """A bitmap of so many bits, none of them set."""
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
    """Set the bits at all these places."""
    for place in places:
        set_bit(bits, place)


@compiled()
def get_bits(bits: Bits, places: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Whether the bit at each of these places is set; bool [places]."""
    found = np.empty(len(places), dtype=np.bool_)
    for i in range(len(places)):
        found[i] = bit_is_set(bits, places[i])
    return found


@compiled()
def bits_in(word: np.uint64) -> np.int64:
    """How many bits of a word are set; for kernels, compiled into the instruction for it."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


def count_bits(bits: Bits) -> int:
    """How many bits are set."""
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def write_bits(path: Path, bits: Bits) -> None:
    """Write a bitmap to a file, atomically."""
    with write_atomically(path) as file:
        file.write(bits.data)


def read_bits(path: Path, count: int) -> Bits:
    """Read a bitmap of so many bits; `PilekitError` if the file is of another length."""
    bits = np.fromfile(path, dtype=np.uint8)
    if len(bits) != -(-count // 8):
        raise PilekitError(f"{visible(str(path))}: is damaged (not a bit for each of {count:,} documents); remove it")
    return bits
