"""`DrawnDocuments`: the documents of a lane whose mixture changes, drawn from the lane's share of each subset.

Every subset has an endless sequence of its documents, in units, shuffled again in each epoch (subset_lanes.py).
Lane l of L takes the units at the positions l, l + L, l + 2L, ... of each of these sequences. So a lane holds its own
endless sequence of every subset, and needs no other lane to know which document comes next. From these it makes one
sequence: `Draws` names the subset, and the lane takes that subset's next document.

Why no document is lost or seen again early, whatever changes when: what a schedule decides is only from which of its
sequences a lane takes next. Each of them is read in its own order, a document at a time, and nothing else moves its
place. Each unit of an epoch stands at one position, and each position belongs to one lane. So in each epoch of a subset
every document stands exactly once, and a lane finishes its share of an epoch before it begins the next.

Why the number of ranks and workers changes nothing: a document's subset depends on the lane's own documents so far, on
their tokens, and on the step. The step follows from the lane's rows: a lane gives q rows to every M-th step, so row r
belongs to step (r div q) * M + column. A document belongs to the row that its first token would be in if the rows were
full. With "concat" they are. With "best_fit" rows of a window are shuffled, so a window mixes the steps that it serves.
It closes where the schedule has a border, so that the rows before a border hold documents of before, but for the one
document, or a rest of few, that does not fit.

A place is the number of documents drawn, and `Place.drawn`: the basis of the turns, then for each subset the place in
its sequence, then for each subset its turn or wait, as the bits of a float64 number. With "best_fit" and "none" it is
the place of a window's beginning, where turns are settled to waits. With "concat" it is the place of the document that
the row ends in, before it is drawn: it is drawn again. Nothing that was read and not yet drawn is part of a place. It
is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.stream.order.draws import Draws
from pilekit.stream.order.schedule import Revision, Schedule, in_force
from pilekit.stream.pack.window import Layout, Place, TokenizedDocuments
from pilekit.stream.read.lane_documents import ORDER, POSITION

_NEVER = 1 << 62


@dataclass(frozen=True)
class LaneSteps:
    """Which step a row of a lane belongs to: every `columns`-th from `column` on takes `per_visit` rows."""

    column: int
    columns: int
    per_visit: int

    def of_row(self, row: int) -> int:
        """The step that takes this row of the lane."""
        return row // self.per_visit * self.columns + self.column

    def first_row(self, step: int) -> int:
        """The first row that `step` or a later one takes."""
        return max(0, -(-(step - self.column) // self.columns)) * self.per_visit

    def next_visit(self, row: int) -> int:
        """The first row of the lane's next visit after this row's."""
        return (row // self.per_visit + 1) * self.per_visit


@dataclass
class _Subset:
    """A subset's sequence in a lane, and what was read of it ahead.

    open    gives the sequence's tokenized documents from a place on
    unit    documents in a unit: a place is (position, document), written as one number
    place   after the last document drawn
    """

    open: Callable[[int, int], Iterator[TokenizedDocuments]]
    unit: int
    place: int
    parts: Iterator[TokenizedDocuments] | None = None
    part: TokenizedDocuments | None = None
    at: int = 0
    lengths: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def read(self, layout: Layout) -> TokenizedDocuments:
        """Read the next documents, at least one."""
        if self.parts is None:
            self.parts = self.open(*place_in(self.place, self.unit))
        self.part = part = next(part for part in self.parts if len(part))
        self.at, self.lengths = 0, layout.lengths(part).tolist()
        self.places = place_code(part.table[:, POSITION], part.table[:, ORDER] + 1, self.unit).tolist()
        return part


def place_code(position: Int64, document: Int64, unit: int) -> Int64:
    """(position, document) of a sequence in units of `unit` as one number."""
    return position * (unit + 1) + document


def place_in(code: int, unit: int) -> tuple[int, int]:
    """The (position, document) of `place_code`."""
    return divmod(code, unit + 1)


class DrawnDocuments:
    """The documents of one lane from `place` on; `windows` gives them.

    opens      by subset: gives its tokenized documents in the lane from (position, document) on
    units      by subset: documents in a unit
    names      of the subsets
    revisions  of the schedule
    turns      the rows that the lane has given before `place`, and per visit
    """

    def __init__(
        self,
        opens: Sequence[Callable[[int, int], Iterator[TokenizedDocuments]]],
        units: Sequence[int],
        names: Sequence[str],
        revisions: Sequence[Revision],
        steps: LaneSteps,
        place: Place,
        layout: Layout,
    ) -> None:
        self._names, self._revisions, self._steps, self._layout = tuple(names), revisions, steps, layout
        basis, places, bits = place.drawn[0], place.drawn[1 : 1 + len(names)], place.drawn[1 + len(names) :]
        self._subsets = [_Subset(*of) for of in zip(opens, units, places, strict=True)]
        values = np.array(bits, np.int64).view(np.float64).tolist()
        shares = self._shares(revisions[-1].schedule, basis - 1) if basis else ()
        self._draws, self._count = Draws(basis, values, shares), place.document

    def _shares(self, schedule: Schedule, step: int) -> tuple[float, ...]:
        shares: Mapping[str, float] = schedule.at(step)
        return tuple(shares.get(name, 0.0) for name in self._names)

    @property
    def place(self) -> Place:
        """The place after the documents given so far, with settled turns."""
        self._draws.settle()
        values = np.array(self._draws.record()).view(np.int64).tolist()
        return Place(0, self._count, 0, (0, *(subset.place for subset in self._subsets), *values))

    def windows(self, rows_before: Callable[[], int], first: int = 0) -> Iterator[list[TokenizedDocuments]]:
        """The documents of one window after another, each as a list of one part, which the caller may empty.

        rows_before   the rows that the lane gives before the window
        first         with "concat": tokens of the first document that are in rows before
        """
        runs_on, seq_len = self._layout.packing == "concat", self._layout.seq_len
        filled = rows_before() * seq_len - first
        while True:
            if not runs_on:
                filled = rows_before() * seq_len
            schedule = self._revisions[-1].schedule
            limit = _NEVER
            if not runs_on:
                schedule = in_force(self._revisions, begin := self._steps.of_row(filled // seq_len))
                border = schedule.border_after(begin)
                limit = _NEVER if border is None else self._steps.first_row(border) * seq_len
            window = _Drawn()
            filled = self._draw(window, schedule, filled, limit, runs_on)
            joined = [window.joined(self._count, self._layout)]
            self._count += len(window.picked)
            yield joined

    def _draw(self, window: _Drawn, schedule: Schedule, filled: int, limit: int, runs_on: bool) -> int:
        """Draw a window's documents, for rows from token `filled` of the lane on, up to token `limit`.

        Returns the token after them.
        """
        layout, draws, subsets = self._layout, self._draws, self._subsets
        separate, total, until = layout.packing == "none", 0, -1
        while len(window.picked) < layout.window and total < layout.most_tokens and filled < limit:
            if filled >= until:
                step = self._steps.of_row(row := filled // layout.seq_len)
                draws.use(step, self._shares(schedule, step))
                until = self._until(schedule, step, row) * layout.seq_len
                turns, rates = draws.turns, draws.rates
            number = turns.index(min(turns))  # as `Draws.next`, without a call for each document
            subset = subsets[number]
            if subset.part is None or subset.at == len(subset.lengths):
                subset.read(layout)
            if runs_on:
                window.places.append((draws.basis, *(other.place for other in subsets)))
                window.values.append(draws.record())
            place, length = subset.at, subset.lengths[subset.at]
            window.pick(subset.part, place)
            subset.at, subset.place = place + 1, subset.places[place]
            turns[number] += length * rates[number]  # as `Draws.took`
            total += length
            filled += length if not separate else -(-length // layout.seq_len) * layout.seq_len * (length > 1)
        return filled

    def _until(self, schedule: Schedule, step: int, row: int) -> int:
        """The row from which on the shares may be others than at this row's step."""
        if schedule.changes_at(step):
            return self._steps.next_visit(row)
        border = schedule.border_after(step)
        return _NEVER if border is None else self._steps.first_row(border)


class _Drawn:
    """The documents of a window, in the order in which they were drawn.

    parts           what they were picked from
    picked          their places in `parts` together
    places, values  with "concat", for each document what a place before it needs
    """

    def __init__(self) -> None:
        self.parts: list[TokenizedDocuments] = []
        self.picked: list[int] = []
        self.places: list[tuple[int, ...]] = []
        self.values: list[list[float]] = []
        self._first: dict[int, int] = {}
        self._documents = 0

    def pick(self, part: TokenizedDocuments | None, place: int) -> None:
        """Add the document at `place` of `part`."""
        assert part is not None
        first = self._first.get(id(part))
        if first is None:
            first = self._first[id(part)] = self._documents
            self._documents += len(part)
            self.parts.append(part)
        self.picked.append(first + place)

    def joined(self, before: int, layout: Layout) -> TokenizedDocuments:
        """The documents as one part; `before` documents of the lane were drawn before them."""
        picked = np.array(self.picked, np.int64)
        offsets = np.concatenate([part.offsets[:-1] for part in self.parts])
        lengths = np.concatenate([np.diff(part.offsets) for part in self.parts])[picked]
        ids = []
        firsts = np.cumsum([0, *map(len, self.parts)])
        owners = (np.searchsorted(firsts, picked, side="right") - 1).tolist()
        for owner, begin, length in zip(owners, offsets[picked].tolist(), lengths.tolist(), strict=True):
            ids.append(self.parts[owner].ids[begin : begin + length])
        table = np.concatenate([part.table for part in self.parts])[picked]
        table[:, POSITION], table[:, ORDER] = 0, np.arange(before, before + len(picked))
        drawn = np.zeros((len(picked), 0), np.int64)
        if self.places:
            drawn = np.hstack([np.array(self.places, np.int64), np.array(self.values).view(np.int64)])
        return TokenizedDocuments(np.concatenate(ids), np.append(0, np.cumsum(lengths)), table, drawn=drawn)
