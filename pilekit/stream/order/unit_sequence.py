"""`Sequence`: the one sequence of units that all lanes of a stream share.

A unit is a run of consecutive selected documents. Position p of the sequence stands in epoch p div S, where S = units x
copies, and is number p mod S of that epoch's seeded permutation of all (unit, copy). Lane l of L takes the positions l,
l + L, l + 2L, ... So every unit of an epoch belongs to exactly one lane, no lane is ever empty, and a lane's place is
one integer. Lanes cross from an epoch into the next at slightly different steps.

The documents of a unit are permuted too: by (epoch, unit, copy), so the copies of a document have other neighbours.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pilekit.stream.order.shuffle import Int64, permutation

_UNITS, _DOCUMENTS = 1, 2
"""Keys that keep permutations of units apart from those of documents."""


class Unit(NamedTuple):
    """Which unit stands at a position.

    epoch        counted from 0
    unit, copy   the unit's number, and which of its copies
    begin, end   its documents, numbered among the selected ones
    """

    epoch: int
    unit: int
    copy: int
    begin: int
    end: int


@dataclass(frozen=True)
class Sequence:
    """The sequence over `documents` selected documents, in units of `unit`, `copies` times each per epoch.

    With `shuffle=False` units and documents keep their order, copy after copy. The permutations of two epochs are held,
    8 bytes per unit and copy each, because lanes near an epoch's end stand on both sides.
    """

    documents: int
    unit: int
    copies: int
    seed: int
    lanes: int
    shuffle: bool = True
    _orders: OrderedDict[int, Int64] = field(default_factory=OrderedDict, init=False, repr=False, compare=False)

    @property
    def units(self) -> int:
        """Number of units in the corpus, the last one may be shorter."""
        return -(-self.documents // self.unit)

    @property
    def per_epoch(self) -> int:
        """Positions in an epoch."""
        return self.units * self.copies

    def at(self, position: int) -> Unit:
        """The unit at a position >= 0."""
        epoch, place = divmod(position, self.per_epoch)
        slot = int(self._order(epoch)[place]) if self.shuffle else place
        copy, unit = divmod(slot, self.units)
        return Unit(epoch, unit, copy, unit * self.unit, min(self.documents, (unit + 1) * self.unit))

    def order(self, unit: Unit) -> Int64:
        """The unit's order, int64 [end - begin]: its i-th document is the selected one numbered `begin + order[i]`."""
        length = unit.end - unit.begin
        if not self.shuffle:
            return np.arange(length, dtype=np.int64)
        return permutation(length, self.seed, _DOCUMENTS, unit.epoch, unit.unit, unit.copy)

    def _order(self, epoch: int) -> Int64:
        order = self._orders.get(epoch)
        if order is None:
            order = self._orders[epoch] = permutation(self.per_epoch, self.seed, _UNITS, epoch)
            if len(self._orders) > 2:
                self._orders.popitem(last=False)
        else:
            self._orders.move_to_end(epoch)
        return order
