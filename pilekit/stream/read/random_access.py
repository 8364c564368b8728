"""`RandomAccess`: the plan of shards that can be entered anywhere: units of the one shared sequence, through the index.

Lane l of L reads the units at the positions l, l + L, l + 2L, ... of a `Sequence`. For each, the frames in which its
documents lie are decoded, once, and its lines parsed; copies that do not stay and what the filters drop go; the rest
comes in the unit's own order. `order` numbers the documents of that order before anything was dropped, so a place means
the same whatever the filters do.

All lanes of a process share one set of open files. Filters see a whole unit, a `DocumentBatch` for each shard it
touches, wherever in the unit a lane begins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Some

import numpy as np

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline import Pipeline, Stage
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.random_access.open_readers import OpenReaders
from pilekit.stream.order.repeats import stays
from pilekit.stream.order.selection import Selection
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.order.unit_sequence import Sequence
from pilekit.stream.read.lane_documents import LaneDocuments

_LOOKED_THROUGH = 1 << 20
"""Where none of so many documents stays, none is taken to stay at all."""


class RandomAccess:
    """A `LaneSource`.

    selection   the documents
    sequence    their units, `sequence.documents` is `len(selection)`
    repeats     factors by exact subset name; subsets that it does not name have 1
    filters     document stages, none of them stateful
    end         the position at which lanes end, for a finite pass; None: they have no end
    records     give the documents' records too
    cache       where frames of remote shards are kept

    Can be pickled, if the filters can, and used after a fork. Threads must not share it. `PilekitError` from reading
    for damage, for a shard or index that was changed meanwhile, and for filters that leave nothing.
    """

    def __init__(
        self,
        selection: Selection,
        sequence: Sequence,
        repeats: Mapping[str, float] | None = None,
        filters: Some[Stage] = (),
        end: int | None = None,
        records: bool = False,
        cache: FrameCache | None = None,
    ):
        self.selection, self.sequence, self.repeats = selection, sequence, dict(repeats or {})
        self.end, self.records = end, records
        self.filters = Pipeline(filters)
        self._readers = OpenReaders(selection.corpus, selection.indexes, cache)
        self._some_stay = False

    def first(self, lane: int) -> int:
        """The position at which the lane begins: its own number."""
        return lane

    def documents(self, lane: int, position: int, document: int) -> Iterator[LaneDocuments]:
        """The lane's documents from that place on, a unit at a time."""
        quiet, round_of_lane = 0, self.sequence.per_epoch // math.gcd(self.sequence.per_epoch, self.sequence.lanes)
        while self.end is None or position < self.end:
            read = [self._piece(position, document)]
            quiet = 0 if len(read[0]) else quiet + 1
            # A lane without documents for its share of an epoch may have had bad luck; an epoch without any has no end.
            if self.end is None and not self._some_stay and quiet > self.sequence.per_epoch // self.sequence.lanes:
                self._find_one_that_stays(position // self.sequence.per_epoch)
            if self.end is None and not self.sequence.shuffle and quiet == round_of_lane + 1:
                lanes = self.sequence.lanes
                self._find_one_for_lane(range(position, position + round_of_lane * lanes, lanes))
            yield read.pop()  # A lane that waits holds no texts by this.
            position, document = position + self.sequence.lanes, 0

    def close(self) -> None:
        """Close all files; what is used again is opened again."""
        self._readers.close()

    def _find_one_that_stays(self, epoch: int) -> None:
        """Go through an epoch up to the first document that stays; PilekitError if there is none."""
        first, read = epoch * self.sequence.per_epoch, 0
        for position in range(first, first + self.sequence.per_epoch):
            if len(self._piece(position, 0)):
                self._some_stay = True
                return
            read += self.sequence.unit
            if read >= _LOOKED_THROUGH:
                break
        read = min(read, len(self.selection) * self.sequence.copies)
        raise PilekitError(
            f"no document stays: all of {read:,} documents in a row were dropped by repeats or by the filters "
            f"({visible(repr(list(self.filters.stages)), 200)}); an epoch that selects nothing would not end"
        )

    def _find_one_for_lane(self, positions: range) -> None:
        """PilekitError if nothing ever stays at these positions, to which an unshuffled lane always comes back."""
        if not any(len(self._piece(position, 0, ever=True)) for position in positions):
            lanes = self.sequence.lanes
            raise PilekitError(
                f"lane {positions.start % lanes} of {lanes} would never get a document: unshuffled it always comes "
                "back to the same few places, where repeats and filters leave nothing; shuffle, or choose other lanes"
            )

    def _piece(self, position: int, document: int, ever: bool = False) -> LaneDocuments:
        """What stays of the unit at this position, from the `document`th of its order on; `ever`: in any epoch."""
        unit = self.sequence.at(position)
        order = self.sequence.order(unit)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        texts: list[str] = []
        subsets: list[str] = []
        shards: list[Int64] = []
        numbers: list[Int64] = []
        ranks: list[Int64] = []
        records: list[bytes | memoryview] = []
        # Further copies are of some subsets only.
        labels = {label for label, factor in self.repeats.items() if factor > unit.copy} if unit.copy else None
        begin = 0
        for shard, lines in self.selection.locate(unit.begin, unit.end):
            batch = self._batch(shard, lines, labels)
            if self.repeats:
                factors = np.array([self.repeats.get(label, 1.0) for label in batch.subsets])
                batch = batch.where(
                    factors > unit.copy
                    if ever
                    else stays(self.sequence.seed, unit.epoch, unit.copy, factors, np.array(shard), batch.numbers)
                )
            for kept in self.filters([batch]) if len(batch) else ():
                texts += kept.texts
                if self.records:
                    records += kept.raw_lines()
                subsets += kept.subsets
                shards.append(np.full(len(kept), shard, dtype=np.int64))
                numbers.append(kept.numbers)
                ranks.append(rank[begin : begin + len(lines)][self._places(kept, lines)])
            begin += len(lines)
        of_each = _joined(ranks)
        by_rank = np.argsort(of_each)
        if bool(np.any(np.diff(of_each[by_rank]) == 0)):
            raise self._made_up()
        by_rank = by_rank[np.searchsorted(of_each[by_rank], document) :]
        chosen = by_rank.tolist()
        return LaneDocuments(
            position=position,
            order=of_each[by_rank],
            texts=[texts[i] for i in chosen],
            subsets=[subsets[i] for i in chosen],
            shards=_joined(shards)[by_rank],
            numbers=_joined(numbers)[by_rank],
            records=[records[i] for i in chosen] if self.records else None,
        )

    def _batch(self, shard: int, lines: Int64, labels: Collection[str] | None) -> DocumentBatch:
        batch = self._readers.of(shard).batch(lines, labels)
        selection = self.selection
        if not all(map(selection.selects, set(batch.subsets))):
            path, index = selection.corpus.shards[shard].path, selection.indexes[shard].path
            raise PilekitError(
                f"{visible(index)}: does not fit {visible(path)} (documents have other subsets); remove it and make a "
                "new one with `pilekit index`"
            )
        return batch

    def _places(self, kept: DocumentBatch, lines: Int64) -> Int64:
        """Which of these lines the documents that came through the filters are."""
        places = np.minimum(np.searchsorted(lines, kept.numbers), len(lines) - 1)
        if not np.array_equal(lines[places], kept.numbers):
            raise self._made_up()
        return places

    def _made_up(self) -> PilekitError:
        return PilekitError(
            f"the filters ({visible(repr(list(self.filters.stages)), 200)}) give documents that they were not given, "
            "or one twice; a document stage drops documents or changes their texts"
        )


def _joined(parts: list[Int64]) -> Int64:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
