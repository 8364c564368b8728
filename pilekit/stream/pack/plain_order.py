"""`PlainOrder`: the one order of all documents that lanes have before a schedule's first entry, and the rest of it.

Lane l of L takes the units at the positions l, l + L, ... of one sequence of all documents, as in a stream without
weights by step. A window that begins before the step of the schedule's first entry is a window of this order, and it is
the same as without a schedule. With "best_fit" and "none" it also serves some steps after the entry. The windows after
it are drawn (drawn_windows.py). With "concat" all rows from the entry's step on are drawn.

Why no document is lost or seen again early: what a lane draws of a subset is first the rest of the lane's share of the
epoch that it is in, in the one order, but only documents of this subset. So with what the lane has read before, each
document has stood in it as often as in any epoch. Then the subset's own sequence follows from its beginning. A subset
that a schedule gains later begins in the same way.

A place in what a lane draws of a subset is one number. From 0 on it is a place in the subset's own sequence. In the
rest it is the place in the one order (`place_code`) less that of the lane's first position in the next epoch, so it is
below 0. `WHOLE_REST` is the place of a subset of which nothing was drawn yet. If all subsets have it, the lane is still
in the one order, and the first three numbers of its place are those of a lane without a schedule. A lane that draws has
as `Place.position` the place in the one order at which it has left this.

With "concat" a lane may leave the one order inside a document. If the schedule has the document's subset, its remaining
tokens are the first that are drawn of the subset. Otherwise they are not read. The schedule is the one in force at that
step, so a replay under a later one does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.stream.order.schedule import Revision, in_force
from pilekit.stream.pack.drawn_windows import LaneSteps, place_code, place_in, places_after
from pilekit.stream.pack.encode import Encoder
from pilekit.stream.pack.lane_windows import Drawing, windows
from pilekit.stream.pack.window import Layout, Place, Turns, Window
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import SUBSET, LaneDocuments, Table
from pilekit.stream.read.random_access import RandomAccess

WHOLE_REST = -(1 << 62)


class PlainOrder:
    """The one order of `selected`, in units of `unit` documents, for so many lanes.

    revisions  of the schedule
    names      of the subsets, in the order of `Place.drawn`

    It can be pickled if the filters can, and used after a fork. Threads must not share it.
    """

    def __init__(
        self,
        selected: StreamDocuments,
        revisions: Sequence[Revision],
        unit: int,
        lanes: int,
        names: Sequence[str],
        readers: OpenReaders,
    ) -> None:
        self._revisions, self._names, self._subsets = revisions, tuple(names), tuple(selected.subset_ids)
        # All revisions agree on it once a window is drawn, because steps that are done do not change.
        self._begin = revisions[-1].schedule.begin
        self._sequence = selected.sequence(unit, lanes)
        self._all = RandomAccess(selected, self._sequence, readers=readers)
        self._of_subset = [RandomAccess(selected, self._sequence, name, readers=readers) for name in names]

    def windows(
        self,
        lane: int,
        place: Place,
        layout: Layout,
        turns: Turns,
        steps: LaneSteps,
        encoder: Encoder,
        drawing: Callable[[Place], Drawing],
    ) -> Generator[Window, None, None]:
        """The windows of a lane from `place` on: those of the one order, and then those that are drawn.

        drawing   gives what the lane draws from a place on
        """
        row, is_concat = turns.before, layout.packing == "concat"
        if set(self._codes(place)) == {WHOLE_REST}:
            begun_at = row if is_concat else row - place.offset_in_window
            if steps.of_row(begun_at) < self._begin:
                with closing(self._all.documents(lane, place.position, place.document)) as documents:
                    for window in windows(encoder.encoded(documents, layout), lane, place, layout, turns):
                        if is_concat:
                            window = window.part(0, min(len(window), steps.first_row(self._begin) - row))
                        if len(window):
                            row, place = row + len(window), Place.of(window.after[-1])
                        yield window
                        if steps.of_row(row) >= self._begin:
                            break
            place = self._left(lane, place, in_force(self._revisions, steps.of_row(row)).names)
        drawn = np.array(place.drawn, np.int64)
        codes = drawn[1 : 1 + len(self._names)]
        codes[codes == WHOLE_REST] = place.position - self._end(place.position)
        place = place._replace(drawn=tuple(drawn.tolist()))
        yield from windows(drawing(place), lane, place, layout, turns._replace(before=row))

    def rest(
        self, number: int, lane: int, place: Place, code: int, layout: Layout, encoder: Encoder
    ) -> Iterator[tuple[LaneDocuments, Int64]]:
        """From `code` on, which is below 0, the rest of a subset in a lane, and the code after each document.

        number   of the subset
        place    of the lane, which draws
        """
        end = self._end(place.position)
        position, document = place_in(code + end, self._sequence.unit)
        until, _ = place_in(end, self._sequence.unit)
        with closing(self._of_subset[number].documents(lane, position, document, until)) as documents:
            for part in encoder.to_draw(documents, layout):
                yield part, places_after(part, self._sequence.unit) - end

    def _codes(self, place: Place) -> tuple[int, ...]:
        return place.drawn[1 : 1 + len(self._names)]

    def _end(self, left: int) -> int:
        """The place of the lane's first position in the epoch after that of the place `left`, both as `place_code`."""
        sequence = self._sequence
        position, _ = place_in(left, sequence.unit)
        next_epoch = (position // sequence.per_epoch + 1) * sequence.per_epoch
        first = position - (position - next_epoch) // sequence.lanes * sequence.lanes
        return first * (sequence.unit + 1)

    def _left(self, lane: int, place: Place, named: Sequence[str]) -> Place:
        """The place from which a lane draws that leaves the one order at `place`, under a schedule of these subsets."""
        position, document, used, (basis, *numbers) = place
        unit, count = self._sequence.unit, len(self._names)
        left = int(place_code(position, document + (used > 0), unit))
        codes, tokens, waits = [left - self._end(left)] * count, [0] * count, numbers[2 * count :]
        if used and (name := self._subset_at(lane, place)) in named:
            number = self._names.index(name)
            codes[number], tokens[number] = codes[number] - 1, used
        return Place(left, 0, 0, (basis, *codes, *tokens, *waits))

    def _subset_at(self, lane: int, place: Place) -> str:
        """The subset of the document at `place` of the one order."""
        with closing(self._all.documents(lane, place.position, place.document)) as documents:
            table: Table = next(part.table for part in documents if len(part))
        if tuple(table[0, :2].tolist()) != place[:2]:
            raise place.changed()
        return self._subsets[int(table[0, SUBSET])]
