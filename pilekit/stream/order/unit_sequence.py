"""`Sequence`: the one sequence of units that all lanes of a stream share; and how often it uses a document.

A unit is a run of consecutive selected documents. An epoch has S = units x copies positions. Position p is in epoch p
div S, and is number p mod S of that epoch's seeded permutation of all (unit, copy). Lane l of L takes the positions l,
l + L, l + 2L, ... So every unit of an epoch belongs to exactly one lane, no lane is ever empty, and a lane's place is
one integer. Lanes enter the next epoch at slightly different steps. Where documents have weights, a unit has only as
many copies as its heaviest document needs (`slots_of`), and S is the number of these.

The documents of a unit are permuted too, by (epoch, unit, copy). So the copies of a document have different neighbours.

`repeats` needs copies, and no state. The factor f of a subset is the number of epochs in the Pile's paper. Copy k of a
document is read if k < floor(f). Copy floor(f) is read if the document's hash of (seed, epoch, document) is below the
fraction of f. So a document is used floor(f) or ceil(f) times in each epoch, exactly f times if f is whole. In each
epoch other documents get the additional copy. A document's weight multiplies the factor of its subset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shuffle import Int64, drawn_below, permutation, permutation_key
from pilekit.documents import DocumentBatch
from pilekit.stream.order.philox_kernel import philox_words

Float64 = npt.NDArray[np.float64]

_UNITS, _DOCUMENTS = 1, 2
"""Keys that keep permutations of units and those of documents apart."""
_LOW = (1 << 64) - 1


class Unit(NamedTuple):
    """The unit at a position.

    epoch        counted from 0
    unit, copy   the unit's number, and the number of the copy
    begin, end   its documents, by their numbers in the selection
    """

    epoch: int
    unit: int
    copy: int
    begin: int
    end: int


@dataclass(frozen=True)
class Sequence:
    """The sequence over `documents` selected documents, in units of `unit`, `copies` times each per epoch.

    slots   the (unit, copy) pairs of an epoch, if not all: copy x units + unit of each, increasing

    With `shuffle=False` units and documents keep their order, copy after copy.
    """

    documents: int
    unit: int
    copies: int
    seed: int
    lanes: int
    shuffle: bool = True
    slots: Int64 | None = None

    @property
    def per_epoch(self) -> int:
        """Positions in an epoch."""
        return -(-self.documents // self.unit) * self.copies if self.slots is None else len(self.slots)

    def at(self, position: int) -> Unit:
        """The unit at a position >= 0."""
        units = -(-self.documents // self.unit)  # the last may be shorter
        epoch, place = divmod(position, self.per_epoch)
        slot = int(_order_of_units(self.per_epoch, self.seed, epoch)[place]) if self.shuffle else place
        copy, unit = divmod(slot if self.slots is None else int(self.slots[slot]), units)
        return Unit(epoch, unit, copy, unit * self.unit, min(self.documents, (unit + 1) * self.unit))

    def order(self, unit: Unit) -> Int64:
        """The unit's order, int64 [end - begin]: its i-th document has number `begin + order[i]` in the selection."""
        length = unit.end - unit.begin
        if not self.shuffle:
            return np.arange(length, dtype=np.int64)
        # As `permutation` makes it.
        key, words = (
            permutation_key(self.seed, _DOCUMENTS, unit.epoch, unit.unit, unit.copy),
            np.empty(length, np.uint64),
        )
        philox_words(key & _LOW, key >> 64, words)
        return words.argsort(kind="stable")


@lru_cache(maxsize=32)
def _orders(n: int, seed: int) -> dict[int, Int64]:
    """The orders by epoch that are kept for the sequences of these numbers: two at most."""
    return {}


def _order_of_units(n: int, seed: int, epoch: int) -> Int64:
    """Kept for two epochs: near an epoch's end some lanes are in the next. 8 bytes per unit and copy."""
    orders = _orders(n, seed)
    if epoch not in orders:
        if len(orders) == 2:
            del orders[max(orders, key=lambda other: abs(other - epoch))]
        orders[epoch] = permutation(n, seed, _UNITS, epoch)
    return orders[epoch]


def slots_of(uses: npt.NDArray[np.float64]) -> Int64:
    """The slots of a `Sequence` whose units have documents with so many uses at most, float64 [units]."""
    copies = np.maximum(1, np.ceil(uses)).astype(np.int64)
    ends, units = np.cumsum(copies), np.arange(len(copies))
    copy = np.arange(ends[-1]) - np.repeat(ends - copies, copies)
    return np.sort(copy * len(copies) + np.repeat(units, copies))


def documents_of_copy(
    batch: DocumentBatch,
    repeats: Mapping[str, float],
    seed: int,
    epoch: int,
    copy: int,
    shard: int,
    weights: Float64 | None = None,
) -> DocumentBatch:
    """The documents of the batch, which is of shard number `shard`, that are read in copy `copy` of their unit.

    weights   of each document, float64 [documents]; None: 1
    """
    if not repeats and weights is None:
        return batch
    factors = np.array([repeats.get(label, 1.0) for label in batch.subsets])
    return batch.where(is_of_copy(factors, seed, epoch, copy, shard, batch.numbers, weights))


def is_of_copy(
    factors: Float64, seed: int, epoch: int, copy: int, shard: int, numbers: Int64, weights: Float64 | None
) -> npt.NDArray[np.bool_]:
    """Whether each document, whose subset has this factor, is read in copy `copy` of its unit: bool [documents]."""
    return drawn_below((factors if weights is None else factors * weights) - copy, seed, epoch, shard, numbers)
