"""The sequential plan: lanes over whole shards, for shards that can only be read from the beginning.

Lane l of L owns the shards whose index is l modulo L, in the order of their names. In each epoch, a seeded permutation
orders the lane's (shard, copy) pairs. Each pair is read from beginning to end, by a thread that decodes ahead. A
position is the number of a pair in the lane. Documents are permuted inside blocks of consecutive ones
(shuffled_blocks.py), and orders are line numbers. So restoring opens one shard and decodes it up to one line; nothing
before that line's block is parsed.

The Pile's shards were shuffled when they were made, so blocks suffice. Shards that are sorted, such as a file for each
source, can be rewritten with `pilekit reframe`, so that streams shuffle all documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import closing
from functools import lru_cache
from itertools import chain

import numpy as np

from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.corpus.shuffle import Int64, permutation
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, counted, shortened
from pilekit.pipeline.pipeline import Pipeline
from pilekit.shards.read.change_check import check_version
from pilekit.shards.read.reader import ShardReader, read
from pilekit.stream.order.unit_sequence import documents_of_copy
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import ORDER, SKIPPED, LaneDocuments
from pilekit.stream.read.shuffled_blocks import shuffled_blocks

_MOST_COLUMNS = 8
"""The most lanes per rank, if there are enough shards; this many workers can share the rank's work."""

_MOST_EMPTY = 64
"""With fractional repeats, this many epochs in a row may be empty: a factor of 0.5 drops a document in half of them."""

_SHARDS, _BLOCKS = 4, 6
"""Keep these permutations apart from others of the same seed."""


def default_grid(shards: int, world_size: int) -> tuple[int, int]:
    """(rows, columns) of a new run's grid: at least one shard per lane, unless there are more ranks than shards."""
    return world_size, max(1, min(_MOST_COLUMNS, shards // world_size))


class Sequential:
    """Lanes of whole shards; a `LaneSource`.

    selected   the stream's documents
    end        the position at which lanes end, for a finite pass; None: endless

    PilekitError for more lanes than shards. Reading raises PilekitError if a whole epoch of a lane has no document, for
    damage and, unless bad lines are skipped, for bad lines. Skipped lines are counted with the document that follows
    them. A shard that has changed since the stream was made is a `ShardChanged`.
    """

    def __init__(self, selected: StreamDocuments, lanes: int, end: int | None = None) -> None:
        shards = len(selected.corpus.shards)
        if lanes > shards:
            raise PilekitError(
                f"{lanes:,} lanes cannot share {counted(shards, 'shard')} that must be read from the beginning: use at "
                f"most {counted(shards, 'rank')}, or lanes of which rows x columns is at most {shards:,}, or "
                f"rewrite the shards with `pilekit reframe`"
            )
        self._selected, self._lanes, self._end = selected, lanes, end
        masks = () if selected.dedup is None else (selected.dedup,)
        self._stages = Pipeline((*masks, *selected.filters))

    def _shards_of(self, lane: int) -> range:
        """The indexes of the lane's shards in the corpus."""
        return range(lane, len(self._selected.corpus.shards), self._lanes)

    def _shard_at(self, lane: int, position: int) -> tuple[int, int, int]:
        """(epoch, index of the shard, copy) at a position of the lane."""
        shards = self._shards_of(lane)
        per_epoch = len(shards) * self._selected.copies
        epoch, place = divmod(position, per_epoch)
        if self._selected.shuffle:
            place = int(_order(per_epoch, self._selected.seed, lane, epoch)[place])
        copy, shard = divmod(place, len(shards))
        return epoch, shards[shard], copy

    def documents(self, lane: int, position: int, document: int) -> Generator[LaneDocuments, None, None]:
        """The lane's documents from line `document` of the (shard, copy) at `position` on."""
        bad: deque[int] = deque()  # numbers of bad lines that no document has followed yet
        fractions = any(factor % 1 for factor in self._selected.repeats.values())
        # Twice an epoch, because the only document may be first in one epoch and last in the next.
        empty, most = 0, 2 * len(self._shards_of(lane)) * self._selected.copies * (_MOST_EMPTY if fractions else 1)
        while self._end is None or position < self._end:
            empty += 1
            with closing(self._unit(lane, position, document, bad)) as pieces:
                for piece in pieces:
                    empty = 0
                    yield piece
            if self._end is None and empty > most:
                raise self._no_documents_error(lane)
            position, document = position + 1, 0
            bad = deque([-1] * len(bad))  # count them with the first document of the next shard

    def _unit(self, lane: int, position: int, document: int, bad: deque[int]) -> Generator[LaneDocuments, None, None]:
        """The documents of one (shard, copy) from line `document` on."""
        epoch, index, copy = self._shard_at(lane, position)
        shard = self._selected.corpus.shards[index]
        if shard.path == STANDARD_INPUT and position > 0:
            raise PilekitError("standard input (-) can be read only once; give epochs=1, or save it to a file first")
        version = self._selected.versions[index]
        check_version(shard.path, version)
        if (lines := self._selected.block) is None:
            yield from self._in_order(epoch, index, copy, position, document, bad)
        else:
            # Of a block's documents, those before the place were given. Its bad lines before the place were counted.
            seed = self._selected.seed
            pieces = self._in_order(epoch, index, copy, position, document - document % lines, bad, document)
            with closing(pieces):
                for block in shuffled_blocks(
                    pieces, lines, lambda count, first: permutation(count, seed, _BLOCKS, index, epoch, copy, first)
                ):
                    yield block.part(int(np.searchsorted(block.table[:, ORDER], document)), len(block))
        check_version(shard.path, version)

    def _in_order(
        self, epoch: int, index: int, copy: int, position: int, document: int, bad: deque[int], counted_from: int = 0
    ) -> Generator[LaneDocuments, None, None]:
        """The documents of one (shard, copy) from line `document` on. Bad lines before `counted_from` do not count."""
        shard = self._selected.corpus.shards[index]
        with read(
            shard,
            self._subsets_of_copy(copy),
            self._selected.on_error,
            manifest=self._selected.corpus.manifest,
            start=document,
        ) as reader:
            repeats, seed = self._selected.repeats, self._selected.seed
            batches = (
                documents_of_copy(batch, repeats, seed, epoch, copy, index) for batch in _with_bad_lines(reader, bad)
            )
            for batch in self._stages(batch for batch in batches if len(batch)):
                if not len(batch):
                    continue
                if batch.numbers[0] < document or bool(np.any(np.diff(batch.numbers) <= 0)):
                    raise PilekitError(
                        f"{shard.name}: a stage of filters= gives its documents in another order, or twice; "
                        "stages may drop documents and change their text"
                    )
                document = int(batch.numbers[-1]) + 1
                documents = self._selected.lane_documents(batch, index, position, batch.numbers)
                while bad and bad[0] < document:
                    line = bad.popleft()
                    if not 0 <= line < counted_from:
                        documents.table[np.searchsorted(batch.numbers, line), SKIPPED] += 1
                yield documents

    def _subsets_of_copy(self, copy: int) -> tuple[str, ...] | None:
        """The subsets that have documents in this copy, at least one; None: all subsets."""
        if self._selected.subsets is None and copy == 0:
            return None
        names = self._selected.subsets or self._selected.repeats
        return tuple(name for name in names if self._selected.repeats.get(name, 1.0) > copy)

    def _no_documents_error(self, lane: int) -> PilekitError:
        names = shortened(", ".join(self._selected.corpus.shards[index].name for index in self._shards_of(lane)), 200)
        documents = "of " + shortened(", ".join(self._selected.subsets), 200) if self._selected.subsets else "at all"
        return PilekitError(
            f"no documents {documents} are left in {names}, all that lane {lane} of {self._lanes} reads in an epoch; "
            "select more (`pilekit stats` shows what there is), give fewer lanes, or rewrite the shards with `pilekit "
            "reframe`, so that lanes share all shards"
        )


def _with_bad_lines(reader: ShardReader, bad: deque[int]) -> Generator[DocumentBatch, None, None]:
    """The reader's batches. The line numbers of bad lines before a batch's end are added to `bad`, increasing."""
    earlier_count = 0
    for batch in chain(reader, [None]):
        listed = [example.line - 1 for example in reader.skipped.examples]
        reader.skipped.examples.clear()  # the list is bounded; bad lines beyond it count as its last
        count, earlier_count = reader.skipped.count - earlier_count, reader.skipped.count
        bad.extend(listed + listed[-1:] * (count - len(listed)))
        if batch is not None:
            yield batch


@lru_cache(maxsize=256)
def _order(n: int, seed: int, lane: int, epoch: int) -> Int64:
    return permutation(n, seed, _SHARDS, lane, epoch)
