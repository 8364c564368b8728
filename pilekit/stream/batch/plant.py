"""`PlantedRows`: texts that stand in some rows of some steps instead of what the stream has there.

A planted row holds one text of a file, its end-of-document token, and padding. It replaces a whole row. The documents
of the replaced row are missing in that row alone: no lane knows of it, so order, state and all other rows stay as they
are, bit for bit.

The place of a copy, a step and a row in it, is drawn by a hash of the seed, the text, and the number of the copy. So
every process finds the same table, for any number of ranks, micro-batches and workers. A text keeps its places if the
file gets or loses other texts, and 16 copies have the places of 4 copies and 12 more. Only a place that is taken is
drawn again. Copies keep the order of the list and of the file then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from pilekit.corpus.shuffle import Int64, UInt64, mix
from pilekit.errors import PilekitError, counted
from pilekit.stream.batch.planted_texts import PlantedTexts
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.pack.window import Window

_PLACES = 10
"""The first word of the key of a place's hash."""


@dataclass(frozen=True, eq=False)
class PlantedRows:
    """The planted texts of a stream, and their places.

    entries      the texts, with shard numbers from `first_shard` on
    subset       the id of `PLANTED`
    append_eod   whether the end-of-document token follows each text
    seed         of the places
    """

    entries: Sequence[PlantedTexts]
    subset: int
    append_eod: bool
    seed: int
    _tables: dict[int, tuple[Int64, Int64]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the files as shards, by their numbers after those of the corpus."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    def identity(self) -> list[dict[str, Any]]:
        """What a state says of them, as JSON types."""
        return [entry.identity() for entry in self.entries]

    def described(self) -> list[dict[str, Any]]:
        """The same, with the path of each file, and for each text the number in its file."""
        numbers = [{"path": entry.path, "numbers": entry.numbers.tolist()} for entry in self.entries]
        return [{**entry, **more} for entry, more in zip(self.identity(), numbers, strict=True)]

    def places(self, rows: int) -> tuple[Int64, Int64]:
        """The planted rows, for steps of `rows` rows.

        Returns int64 [copies], increasing: step x rows + row in the step; and int64 [copies, 2]: for each the entry,
        and the text in it. PilekitError if the copies are more than half of the rows of their steps.
        """
        if rows not in self._tables:
            taken, table = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
            drawn = [taken]
            for number, entry in enumerate(self.entries):
                text = np.repeat(np.arange(len(entry.copies)), entry.copies)
                copy = np.arange(len(text)) - np.repeat(np.cumsum(entry.copies) - entry.copies, entry.copies)
                drawn.append(self._drawn(entry, entry.keys[text], copy, rows, taken))
                taken = np.union1d(taken, drawn[-1])
                table = np.concatenate((table, np.stack((np.full(len(text), number), text), axis=1)))
            places = np.concatenate(drawn)
            order = np.argsort(places)
            self._tables[rows] = places[order], table[order]
        return self._tables[rows]

    def _drawn(self, entry: PlantedTexts, keys: UInt64, copy: Int64, rows: int, taken: Int64) -> Int64:
        """A place for each copy of an entry, int64 [copies], that is not `taken`."""
        first, end = entry.planting.begin * rows, entry.planting.end * rows
        taken = taken[(first <= taken) & (taken < end)]
        if 2 * (len(taken) + len(keys)) > end - first:
            raise PilekitError(
                f"{counted(len(taken) + len(keys), 'copy', 'copies')} in steps {entry.planting.begin:,} to "
                f"{entry.planting.end:,} of {counted(rows, 'row')} are more than half of these rows; give fewer "
                "copies or more steps"
            )
        places = np.full(len(keys), -1, np.int64)
        pending = np.arange(len(keys))
        for turn in count():
            hashed = mix(self.seed, _PLACES, keys[pending], copy[pending], turn)
            drawn = first + (hashed % np.uint64(end - first)).astype(np.int64)
            once = np.unique(drawn, return_index=True)[1]  # of copies that drew one place, the first has it
            free = once[~np.isin(drawn[once], taken)]
            places[pending[free]] = drawn[free]
            taken = np.concatenate((taken, drawn[free]))
            pending = np.delete(pending, free)
            if not len(pending):
                break
        return places

    def replace(self, share: Share, batch: int, windows: Sequence[Window]) -> Sequence[Window]:
        """The rows of a rank's batch with this number, some of them replaced."""
        rows = share.grid.global_batch_size
        places, table = self.places(rows)
        first = batch // share.grad_accum * rows
        begin, end = np.searchsorted(places, (first, first + rows)).tolist()
        if begin == end:
            return windows
        of_batch = {row: place for place, row in enumerate(share.row_numbers(batch).tolist())}
        texts = {
            of_batch[row]: (self.entries[entry], text)
            for row, (entry, text) in zip((places[begin:end] - first).tolist(), table[begin:end].tolist(), strict=True)
            if row in of_batch
        }
        replaced: list[Window] = []
        place = 0
        for window in windows:
            kept = 0
            for row in range(len(window)):
                if (planted := texts.get(place + row)) is not None:
                    entry, text = planted
                    whole = window.part(row, row + 1)
                    replaced += [window.part(kept, row), entry.window(text, self.subset, self.append_eod, whole)]
                    kept = row + 1
            replaced.append(window.part(kept, len(window)) if kept else window)
            place += len(window)
        return replaced
