"""`SubsetLanes`: lanes that draw their documents from each subset's own sequence, by a schedule of shares.

The documents of a subset are numbered as those of a stream that selects this subset alone, and stand in a `Sequence` of
their own: units of consecutive documents, in another order in each epoch, by a seed of the stream's seed and the
subset's name. So a subset's sequence depends on no other subset, and a schedule may gain a subset while a run goes on.
A lane reads its share of each sequence as any lane does (read/random_access.py), a unit at a time, and draws from what
it has read (drawn_windows.py, which has the argument why nothing is lost or doubled). Before the schedule's first entry
it has one order of all documents, whose rest comes before these sequences (plain_order.py).

A unit has at most 256 documents, a sixteenth of a lane's share of an epoch, and about as many as fill the subset's part
of `UNIT_BYTES` of text (`parts_of_units`). All subsets' units together are what a lane holds beyond its window. With
`copies` a unit stands in its subset's epoch as often as its heaviest document counts, as in one order of all documents.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import xxhash

from pilekit.corpus.shuffle import Int64, mix, permutation
from pilekit.errors import PilekitError
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.stream.order.lane_grid import Grid
from pilekit.stream.order.schedule import Revision, Schedule, check_extension
from pilekit.stream.order.unit_sequence import Sequence as UnitSequence
from pilekit.stream.pack.drawn_windows import DrawnDocuments, LaneSteps, place_code, place_in, places_after
from pilekit.stream.pack.encode import Encoder
from pilekit.stream.pack.lane_windows import windows
from pilekit.stream.pack.plain_order import WHOLE_REST, PlainOrder
from pilekit.stream.pack.window import Layout, Place, Turns, Window
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import LaneDocuments
from pilekit.stream.read.mixture import usual_lengths
from pilekit.stream.read.random_access import RandomAccess
from pilekit.tokenize import Tokenizer

UNIT_BYTES = 12 << 20
"""The most text, roughly, in the units that a lane holds of all subsets."""

_BYTES_PER_TOKEN = 4
_SUBSETS, _WAITS = 8, 9
"""Keep these hashes and permutations apart from others."""


@dataclass(frozen=True)
class Mixture:
    """What decides a scheduled stream's lanes, besides the documents.

    revisions   of the schedule, the present one last
    units       documents in a unit, by exact name, sorted; all subsets that a revision names
    waits       by name: the length of the part of a document in which a token lies on average, in tokens
    """

    revisions: tuple[Revision, ...]
    units: Mapping[str, int]
    waits: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """The subsets, in the order of `Place.drawn`."""
        return tuple(self.units)

    @property
    def begin(self) -> int:
        """The step before which windows have one order of all documents."""
        return self.revisions[-1].schedule.begin


def new_mixture(
    selected: StreamDocuments, schedule: Schedule, lanes: int, tokenizer: Tokenizer | None, layout: Layout
) -> Mixture:
    """The mixture of a new run. PilekitError if a subset has no documents, and under the sequential plan."""
    if selected.count is None or tokenizer is None:
        raise PilekitError(
            "weights by step need random access to draw documents, and the plan is sequential: "
            f"{selected.plan.reason}; write the corpus again with `pilekit reframe`, or make token files of it with "
            "`pilekit tokenize`"
        )
    names = schedule.names
    selected.find_subsets(names)
    counts = {name: len(selected.of_subset(name)) for name in names}
    lengths = usual_lengths(
        names,
        selected.corpus,
        selected.plan.indexes,
        selected.readable,
        tokenizer,
        append_eod=layout.append_eod,
        seq_len=layout.seq_len,
    )
    parts = parts_of_units(schedule)
    units = {name: unit_of_subset(counts[name], lanes, parts[name], lengths[name][0]) for name in names}
    return Mixture((Revision(None, schedule),), units, {name: wait for name, (_, wait) in lengths.items()})


def resumed_mixture(
    mixture: Mixture, was: object, units: Mapping[str, int], changes: Sequence[Mapping[str, Any]], until: int
) -> Mixture:
    """The mixture of a run that resumes under the schedule of `mixture`.

    was, units, changes   the schedule (None: there was none), the units and the changes in the state
    until                 the first step of which no row was handed out

    PilekitError if the schedule has other shares before that step.
    """
    revisions = [
        Revision(change["until_step"], Schedule.from_json(change["was"]["weights"]))
        for change in changes
        if "weights" in change["was"]
    ]
    old, new = Schedule.from_json(was), mixture.revisions[-1].schedule
    if old != new:
        check_extension(old, new, until)
        revisions.append(Revision(until, old))
    all_units = {name: units.get(name) or mixture.units[name] for name in sorted({*units, *new.names})}
    return replace(mixture, revisions=(*revisions, Revision(None, new)), units=all_units)


def parts_of_units(schedule: Schedule) -> dict[str, float]:
    """Each subset's part of `UNIT_BYTES`: as the square root of its highest share."""
    # A unit costs one frame more than its text, and a subset needs units in the proportion of share / size. Their sum
    # over all subsets is least where sizes are as square roots.
    roots = {name: sqrt(max(entry.get(name, 0.0) for entry in schedule.entries)) for name in schedule.names}
    total = sum(roots.values())
    return {name: root / total for name, root in roots.items()}


def unit_of_subset(documents: int, lanes: int, part: float, mean_tokens: float) -> int:
    """Documents in a unit of a subset with so many documents of a mean length, with this part of `UNIT_BYTES`."""
    by_bytes = UNIT_BYTES * part / max(1.0, _BYTES_PER_TOKEN * mean_tokens)
    return max(1, min(256, documents // (16 * lanes), int(by_bytes)))


class SubsetLanes:
    """A source of lanes whose mixture changes.

    unit   documents in a unit of the one order before the schedule's first entry

    It can be pickled if the filters can, and used after a fork. Threads must not share it.
    """

    def __init__(self, selected: StreamDocuments, mixture: Mixture, grid: Grid, unit: int) -> None:
        self.mixture, self._grid = mixture, grid
        readers = OpenReaders(selected.corpus, selected.plan.indexes, selected.cache)
        self._of_subset = []
        self._before = (
            PlainOrder(selected, mixture.revisions, unit, grid.lanes, mixture.names, readers) if mixture.begin else None
        )
        for name, size in mixture.units.items():
            documents = selected.of_subset(name)
            seed = int(mix(selected.seed, _SUBSETS, xxhash.xxh3_64_intdigest(name.encode())))
            slots = selected.slots_of_subset(name, size)
            sequence = UnitSequence(len(documents), size, 1, seed, grid.lanes, selected.shuffle, slots)
            self._of_subset.append(RandomAccess(selected, sequence, name, documents, readers))

    def starts(self) -> Int64:
        """The places at which all lanes begin, int64 [L, 3 + 1 + 3 subsets]."""
        lanes, names = self._grid.lanes, self.mixture.names
        starts = np.zeros((lanes, 4 + 3 * len(names)), np.int64)
        nothing = np.zeros(lanes, np.int64)
        if self._before is not None:
            starts[:, 0] = np.arange(lanes)
        for column, name in enumerate(names):
            own = place_code(np.arange(lanes), nothing, self.mixture.units[name])
            starts[:, 4 + column] = own if self._before is None else WHOLE_REST
            rank = permutation(lanes, self._of_subset[column].sequence.seed, _WAITS)
            waits = (rank + 0.5) / lanes * self.mixture.waits.get(name, 0.0)
            starts[:, 4 + 2 * len(names) + column] = waits.view(np.int64)
        return starts

    @contextmanager
    def windows(
        self, lane: int, place: Place, layout: Layout, turns: Turns, encoder: Encoder
    ) -> Iterator[Iterator[Window]]:
        """The windows of a lane from this place on; at the end its readers' generators are closed."""
        steps = LaneSteps(lane % self._grid.columns, self._grid.columns, turns.per_visit)
        names = self.mixture.names
        with ExitStack() as opened:

            def documents(number: int, place: Place, code: int) -> Iterator[tuple[LaneDocuments, Int64]]:
                return opened.enter_context(closing(self._documents(number, lane, place, code, layout, encoder)))

            def drawing(place: Place) -> DrawnDocuments:
                opens = [partial(documents, number, place) for number in range(len(names))]
                return DrawnDocuments(opens, encoder, names, self.mixture.revisions, steps, place, layout)

            if self._before is None:
                yield windows(drawing(place), lane, place, layout, turns)
                return
            every = self._before.windows(lane, place, layout, turns, steps, encoder, drawing)
            yield opened.enter_context(closing(every))

    def _documents(
        self, number: int, lane: int, place: Place, code: int, layout: Layout, encoder: Encoder
    ) -> Generator[tuple[LaneDocuments, Int64], None, None]:
        """What a lane at `place` draws of subset `number`, from `code` on; and the code after each document."""
        source = self._of_subset[number]
        unit = source.sequence.unit
        layout = replace(layout, window=unit)
        if code < 0:
            assert self._before is not None
            yield from self._before.rest(number, lane, place, code, layout, encoder)
            code = lane * (unit + 1)
        with closing(source.documents(lane, *place_in(code, unit))) as texts:
            for part in encoder.to_draw(texts, layout):
                yield part, places_after(part, unit)


def moved_columns(places: Int64, old: Sequence[str], starts: Int64, new: Sequence[str]) -> Int64:
    """Lanes' places with the columns of the subsets `new` in place of `old`; others begin as in `starts`.

    Without subsets the places are those of one order of all documents.
    """
    moved = starts.copy()
    first = min(4, moved.shape[1], places.shape[1])
    moved[:, :first] = places[:, :first]
    for column, name in enumerate(new):
        if name in old:
            before = list(old).index(name)
            for group in range(3):
                moved[:, 4 + group * len(new) + column] = places[:, 4 + group * len(old) + before]
    return moved
