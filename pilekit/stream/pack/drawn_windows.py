"""`DrawnDocuments`: the documents of a lane whose mixture changes, drawn from the lane's share of each subset.

Every subset has an endless sequence of its documents, in units, shuffled again in each epoch (subset_lanes.py).
Lane l of L takes the units at the positions l, l + L, l + 2L, ... of each of these sequences. So a lane holds its own
endless sequence of every subset, and needs no other lane to know what comes next. From these it makes one sequence:
`Draws` names the subset, and the lane takes the next part of that subset's next document, up to the end of a row. A
document that is longer than a row is cut there by every packing. Here its parts need not follow one another: other
subsets have their turns between them. So a book delays no other subset, and shares hold within a row of each subset in
each lane.

Why no document is lost or seen again early, whatever changes when: what a schedule decides is only from which of its
sequences a lane takes next. Each of them is read in its own order, part after part, and nothing else moves its place.
Each unit of an epoch stands at one position, and each position belongs to one lane. So in each epoch of a subset every
document stands exactly once, and a lane finishes its share of an epoch before it begins the next.

Why the number of ranks and workers changes nothing: a part's subset depends on the lane's own parts so far, on their
tokens, and on the step. The step follows from the lane's rows: a lane gives q rows to every M-th step, so row r belongs
to step (r div q) * M + column. A part belongs to the row that its first token would be in if the rows were full. With
"concat" they are. With "best_fit" rows of a window are shuffled, so a window mixes the steps that it serves. It closes
where the schedule has a border, so that the rows before a border hold parts of before, but for the last part, or a rest
of few, that does not fit.

A place is a number that the lane's parts have as their position (0, or where the lane left the one order of all
documents: plain_order.py), the number of parts drawn, and `Place.drawn`: the basis of the turns, then for each subset
the place in its sequence, then for each subset the tokens of its next document that were drawn, then for each subset
its turn or wait, as the bits of a float64 number. With "best_fit" and "none" it is the place of a window's beginning,
where turns are settled to waits. With "concat" it is the place after a row. Nothing that was read and not yet drawn is
part of a place. It is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.stream.order.draws import Draws
from pilekit.stream.order.schedule import Revision, Schedule, in_force
from pilekit.stream.pack.draw_kernel import FILLED, FULL, MORE_ROOM, NEXT_SHARES, draw
from pilekit.stream.pack.drawn_parts import DrawnParts
from pilekit.stream.pack.encode import MOST_DRAWN, Encoder
from pilekit.stream.pack.window import Layout, Place, TokenizedDocuments
from pilekit.stream.read.lane_documents import ORDER, POSITION, LaneDocuments, document_table
from pilekit.tokenize.files.stored_ids import StoredIds, no_ids

_NEVER = 1 << 62

Number = TypeVar("Number", int, Int64)
Opens = Callable[[int], Iterator[tuple[LaneDocuments, Int64]]]


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
    """A subset's sequence in a lane.

    open   gives the sequence from a place on, which is one number (`place_code`): some documents at a time, as
           `Encoder.to_draw`, with the place after each
    """

    open: Opens
    documents: Iterator[tuple[LaneDocuments, Int64]] | None = None

    def read(self, place: int) -> tuple[LaneDocuments, Int64]:
        """The next documents, at least one, and their places. The sequence begins at `place`, if this is its first."""
        if self.documents is None:
            self.documents = self.open(place)
        return next((part, places) for part, places in self.documents if len(part))


def place_code(position: Number, document: Number, unit: int) -> Number:
    """(position, document) of a sequence in units of `unit` as one number."""
    return position * (unit + 1) + document


def place_in(code: int, unit: int) -> tuple[int, int]:
    """The (position, document) of `place_code`."""
    return divmod(code, unit + 1)


def places_after(documents: LaneDocuments, unit: int) -> Int64:
    """The `place_code` after each of these documents, int64 [documents]."""
    return place_code(documents.table[:, POSITION], documents.table[:, ORDER] + 1, unit)


class DrawnDocuments:
    """The documents of one lane from `place` on, in windows.

    opens      by subset: gives its documents in the lane from a place on, as `_Subset` says
    encoder    checks the documents' ids
    names      of the subsets
    revisions  of the schedule
    """

    def __init__(
        self,
        opens: Sequence[Opens],
        encoder: Encoder,
        names: Sequence[str],
        revisions: Sequence[Revision],
        steps: LaneSteps,
        place: Place,
        layout: Layout,
    ) -> None:
        self._names, self._revisions, self._steps, self._layout = tuple(names), revisions, steps, layout
        self._subsets, self._encoder = list(map(_Subset, opens)), encoder
        subsets, drawn = len(names), np.array(place.drawn, np.int64)
        basis, values = int(drawn[0]), drawn[1 + 2 * subsets :].view(np.float64).tolist()
        shares = self._shares(revisions[-1].schedule, basis - 1) if basis else ()
        self._draws, self._place, self._count = Draws(basis, values, shares), place, place.document
        # What was read of each subset, as `draw` takes it.
        self._read = [LaneDocuments(document_table(0), no_ids())] * subsets
        self._at, self._ends, self._used = (np.zeros(subsets, np.int64) for _ in range(3))
        self._lengths = np.zeros((subsets, MOST_DRAWN), np.int64)
        self._codes = np.zeros((subsets, MOST_DRAWN + 1), np.int64)
        self._codes[:, 0], self._used[:] = drawn[1 : 1 + subsets], drawn[1 + subsets : 1 + 2 * subsets]

    def _shares(self, schedule: Schedule, step: int) -> tuple[float, ...]:
        shares: Mapping[str, float] = schedule.at(step)
        return tuple(shares.get(name, 0.0) for name in self._names)

    def window(self, before: int) -> tuple[TokenizedDocuments, Int64]:
        """The parts of the next window, after so many rows of the lane, and the lane's places, as `Place.numbers`.

        Places are int64 [n, numbers]: with "concat" after each of the window's rows, else the one after the window.
        """
        layout, schedule, limit = self._layout, self._revisions[-1].schedule, _NEVER
        if layout.packing != "concat":
            schedule = in_force(self._revisions, begin := self._steps.of_row(before))
            border = schedule.border_after(begin)
            limit = _NEVER if border is None else min(_NEVER, self._steps.first_row(border) * layout.seq_len)
        drawn = DrawnParts(self._read, layout)
        drawn.has[FILLED] = before * layout.seq_len
        self._draw(drawn, schedule, limit)
        documents, largest = drawn.joined(self._count)
        self._encoder.check(documents, largest)
        documents.table[:, POSITION] = self._place.position
        if layout.packing == "concat":
            places = np.concatenate(drawn.places)
            places[:, 1] += self._count
            places[:, 0] = self._place.position
        else:
            self._draws.settle()
            codes = self._codes[np.arange(len(self._at)), self._at]
            bits = self._draws.values.view(np.int64)
            head = [self._place.position, self._count + len(documents), 0, 0]
            places = np.concatenate([head, codes, self._used, bits])[None]
        self._count += len(documents)
        return documents, places

    def _draw(self, drawn: DrawnParts, schedule: Schedule, limit: int) -> None:
        """Draw a window's parts, up to token `limit` of the lane."""
        layout, draws, until = self._layout, self._draws, -1
        separate, concat = layout.packing == "none", layout.packing == "concat"
        while True:
            stopped = draw(
                *(drawn.has, self._at, self._ends, self._used, drawn.source_of),
                *(draws.turns, draws.rates, self._lengths, self._codes),
                *(drawn.parts, drawn.row_places, drawn.row_turns),
                *(layout.seq_len, layout.window, layout.most_tokens, limit, until, concat, separate),
            )
            drawn.note_rows(draws)
            if stopped == FULL:
                return
            if stopped == NEXT_SHARES:
                step = self._steps.of_row(row := int(drawn.has[FILLED]) // layout.seq_len)
                draws.use(step, self._shares(schedule, step))
                until = min(_NEVER, self._until(schedule, step, row) * layout.seq_len)
            elif stopped == MORE_ROOM:
                drawn.make_room()
            else:
                self._read_more(stopped)
                drawn.add_source(stopped, self._read[stopped])

    def _read_more(self, subset: int) -> None:
        place = int(self._codes[subset, self._at[subset]])
        part, after = self._subsets[subset].read(place)
        lengths = cast(StoredIds, part.texts).lengths + self._layout.append_eod
        if self._used[subset] and self._used[subset] >= lengths[0]:
            raise self._place.changed()
        self._read[subset], self._at[subset], self._ends[subset] = part, 0, len(part)
        self._lengths[subset, : len(part)] = lengths
        self._codes[subset, 0], self._codes[subset, 1 : len(part) + 1] = place, after

    def _until(self, schedule: Schedule, step: int, row: int) -> int:
        """The row from which on the shares may be others than at this row's step."""
        if schedule.changes_at(step):
            return self._steps.next_visit(row)
        border = schedule.border_after(step)
        return _NEVER if border is None else self._steps.first_row(border)
