"""`LineBitmap`: which lines of a shard are chosen, one bit each, and the chosen lines by rank.

    lines = LineBitmap.where(index.header.lines, numbers)
    lines.numbers(0, 10)        the first ten chosen lines

Line i is bit i mod 8 (lowest first) of byte i div 8, as in a keep mask, so the two are ANDed directly. A count of the
set bits before each 512 bytes lets two binary searches find a run of chosen lines. 7 million lines take 0.9 MB. Where
all lines are chosen there are no bits, and a rank is a line number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pilekit.errors import PilekitError
from pilekit.shards.index.format import ShardIndex

if TYPE_CHECKING:
    from collections.abc import Callable

Int64 = npt.NDArray[np.int64]

_BLOCK = 512
MOST_LINES = 1 << 36
"""2^36 bits take 8 GiB of memory. No shard of documents has so many lines."""


class LineBitmap:
    """The chosen lines of a shard.

    lines   how many lines the shard has
    bits    uint8 [lines / 8, rounded up]; None: all lines are chosen
    """

    def __init__(self, lines: int, bits: npt.NDArray[np.uint8] | None = None):
        self.lines, self.bits = lines, bits
        self._before = np.array([0, lines])
        if bits is not None:
            counts = np.add.reduceat(np.bitwise_count(bits), np.arange(0, len(bits), _BLOCK), dtype=np.int64)
            self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @classmethod
    def where(cls, lines: int, numbers: Iterable[Int64]) -> LineBitmap:
        """The lines of these numbers, each at most once and below `lines`; each array increases."""
        bits = np.zeros(-(-lines // 8), dtype=np.uint8)
        for part in numbers:
            if len(part):
                places = part >> 3
                # Numbers of one byte follow each other, so a reduction from the first of each gives the byte.
                first = np.flatnonzero(np.diff(places, prepend=-1))
                bits[places[first]] |= np.bitwise_or.reduceat(np.uint8(1) << (part & 7).astype(np.uint8), first)
        return cls(lines, bits)

    def __len__(self) -> int:
        """How many are chosen."""
        return int(self._before[-1])

    @property
    def end(self) -> int:
        """The number after the last chosen line; 0 if none is chosen."""
        return int(self.numbers(len(self) - 1, len(self))[0]) + 1 if len(self) else 0

    def and_bits(self, bits: npt.NDArray[np.uint8]) -> LineBitmap:
        """The chosen lines whose bit is set in `bits`, uint8 [lines / 8, rounded up]."""
        return LineBitmap(self.lines, bits if self.bits is None else self.bits & bits)

    def numbers(self, begin: int, end: int) -> Int64:
        """The numbers of the chosen lines of rank `begin` to `end` - 1, int64; 0 <= begin <= end <= len(self)."""
        if self.bits is None:
            return np.arange(begin, end, dtype=np.int64)
        if begin == end:
            return np.zeros(0, dtype=np.int64)
        first = int(self._before.searchsorted(begin, side="right")) - 1
        last = int(self._before.searchsorted(end, side="left"))
        # As bool, because numpy finds those several times as fast.
        places = np.unpackbits(self.bits[first * _BLOCK : last * _BLOCK], bitorder="little").view(bool).nonzero()[0]
        before = int(self._before[first])
        return places[begin - before : end - before] + first * _BLOCK * 8

    def before(self, numbers: Int64) -> Int64:
        """How many chosen lines stand before each of these lines, int64; a line may be the one after the last."""
        if self.bits is None:
            return numbers
        counts = self._before[numbers // (8 * _BLOCK)]
        for place, number in enumerate(numbers.tolist()):
            block, byte, bit = number // (8 * _BLOCK), number >> 3, number & 7
            counts[place] += int(np.bitwise_count(self.bits[block * _BLOCK : byte]).sum())
            counts[place] += (int(self.bits[byte]) & ((1 << bit) - 1)).bit_count() if bit else 0
        return counts

    def has(self, numbers: Int64) -> npt.NDArray[np.bool_]:
        """Whether each of these lines is chosen, bool [n]."""
        if self.bits is None:
            return np.ones(len(numbers), bool)
        chosen: npt.NDArray[np.bool_] = (self.bits[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1).astype(bool)
        return chosen

    def ranks(self, numbers: Int64) -> Int64:
        """The ranks of these chosen lines, int64; `numbers` increase."""
        if self.bits is None or not len(numbers):
            return numbers
        first = int(numbers[0]) // (8 * _BLOCK)
        bits = np.unpackbits(self.bits[first * _BLOCK : (int(numbers[-1]) >> 3) + 1], bitorder="little")
        # The rank of a chosen line is the number of chosen lines up to it, less itself: those of its run of blocks, and
        # those before.
        ranks: Int64 = np.cumsum(bits, dtype=np.int64)[numbers - first * 8 * _BLOCK] - 1 + self._before[first]
        return ranks


class CorpusBitmap:
    """The chosen documents of all shards, by position: shard by shard, and in each shard by line.

    lines   the chosen lines of each shard
    """

    def __init__(self, lines: Sequence[LineBitmap]):
        self.lines = lines
        self._ends = np.cumsum([0, *map(len, lines)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def before(self, shard: int, numbers: Int64) -> Int64:
        """How many chosen documents stand before each of these lines of a shard, int64."""
        before: Int64 = self._ends[shard] + self.lines[shard].before(numbers)
        return before

    def locate(self, begin: int, end: int) -> Iterator[tuple[int, Int64]]:
        """The documents of position `begin` to `end` - 1: (index of the shard, line numbers); 0 <= begin <= end."""
        shard = int(self._ends.searchsorted(begin, side="right")) - 1
        while begin < end:
            first, until = int(self._ends[shard]), min(end, int(self._ends[shard + 1]))
            if begin < until:
                yield shard, self.lines[shard].numbers(begin - first, until - first)
            begin, shard = until, shard + 1


def lines_of_subsets(
    index: ShardIndex, is_chosen: Callable[[str], bool] | None, most_lines: int = MOST_LINES
) -> LineBitmap:
    """The lines that are documents and, where `is_chosen` is given, whose label is chosen.

    No rows are read where the index's header says that all lines are chosen. `PilekitError` for damaged rows.
    """
    header = index.header
    if is_chosen is None and header.documents == header.lines:
        return LineBitmap(header.lines)
    if header.lines > most_lines:
        raise PilekitError(
            f"{index.path}: its shard has {header.lines:,} lines, more than can be chosen from "
            f"({most_lines:,}); write its documents without blank lines, with `pilekit select`"
        )

    def numbers() -> Iterator[Int64]:
        for rows in index.rows("number", *([] if is_chosen is None else ["subset"])):
            if is_chosen is None:
                yield rows.numbers
            else:
                chosen = np.array([is_chosen(label) for label in rows.labels], dtype=bool)
                yield rows.numbers[chosen[rows.codes]]

    return LineBitmap.where(header.lines, numbers())
