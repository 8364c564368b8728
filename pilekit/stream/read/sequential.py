"""The sequential plan: lanes over whole shards, for shards in which nothing can be reached without what is before it.

Lane l of L owns the shards whose index is l modulo L, in the order of their names, for good. In each epoch every
(shard, copy) of the lane stands once in a seeded permutation; each is read from its beginning to its end, by a thread
that decodes ahead. A position counts the (shard, copy) begun in the lane; a document's place in its unit's order is its
line number. So restoring opens one shard and decodes it up to one line: nothing before that line is parsed.

Each document of a shard follows the one before it in the file, so shuffling is between shards and lanes only. The
Pile's shards were shuffled when they were made; of others, `pilekit reframe` makes shards that are shuffled throughout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from pilekit.corpus import Corpus
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import Pipeline, Stage
from pilekit.shards.read.reader import OnError, ShardReader, read
from pilekit.shards.read.unchanged import check_version
from pilekit.stream.order.repeats import copies, stays
from pilekit.stream.order.shuffle import Int64, permutation
from pilekit.stream.read.lane_documents import LaneDocuments

MOST_COLUMNS = 8
"""So many lanes take turns on one rank, where there are shards for them: so many workers can share its work."""

MOST_EMPTY = 64
"""So many epochs in a row may have no document where repeats are fractions: half a document is not there in half."""

_SHARDS = 4
"""Keeps these permutations apart from others of the same seed."""


def default_grid(shards: int, world_size: int) -> tuple[int, int]:
    """(rows, columns) of the grid at the first start: each lane has a shard; PilekitError for fewer shards than ranks.

    Rows are the ranks, as here a step takes samples from every row of one column.
    """
    if world_size > shards:
        raise PilekitError(
            f"{world_size:,} ranks cannot share {shards:,} shard{'s' * (shards > 1)} that must be read from the "
            f"beginning: use at most {shards:,} rank{'s' * (shards > 1)}, or write the shards anew with `pilekit "
            "reframe`, which any number can share"
        )
    return world_size, min(MOST_COLUMNS, shards // world_size)


@dataclass(frozen=True)
class Sequential:
    """Lanes of whole shards; a `LaneSource`.

    subsets    exact names; None: all
    repeats    factor of each subset whose factor is not 1, by exact name
    stages     what the documents pass: filters, `Deduplicated`; they may drop documents, not reorder them
    shuffle    False: shards in their order, copy after copy
    on_error   "skip": bad lines are counted in `LaneDocuments.skipped`, with the document that follows them
    end        the position at which lanes end, for a finite pass; None: they have no end
    records    give the documents' records too
    versions   of the shards, when the stream was made: a shard that has another one later is a `ShardChanged`

    PilekitError where there are more lanes than shards; while it is read, for a lane of which a whole epoch gives no
    document, for damage and, unless they are skipped, bad lines.
    """

    corpus: Corpus
    lanes: int
    seed: int
    subsets: tuple[str, ...] | None = None
    repeats: Mapping[str, float] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    shuffle: bool = True
    on_error: OnError = "raise"
    end: int | None = None
    records: bool = False
    versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shards = len(self.corpus.shards)
        if self.lanes > shards:
            raise PilekitError(
                f"{self.lanes:,} lanes cannot share {shards:,} shard{'s' * (shards > 1)} that must be read from the "
                f"beginning: give lanes=(rows, columns) with rows x columns of at most {shards:,}, or write the shards "
                "anew with `pilekit reframe`"
            )

    @property
    def copies(self) -> int:
        """How often each shard stands in an epoch."""
        return copies(self.repeats, self.subsets)

    def shards_of(self, lane: int) -> range:
        """The lane's shards, as indexes into the corpus's."""
        return range(lane, len(self.corpus.shards), self.lanes)

    def per_epoch(self, lane: int) -> int:
        """Positions in an epoch of this lane."""
        return len(self.shards_of(lane)) * self.copies

    def first(self, lane: int) -> int:
        """The position at which every lane begins: 0."""
        return 0

    def at(self, lane: int, position: int) -> tuple[int, int, int]:
        """(epoch, index of the shard, copy) at a position of the lane."""
        shards = self.shards_of(lane)
        epoch, place = divmod(position, self.per_epoch(lane))
        if self.shuffle:
            place = int(_order(self.per_epoch(lane), self.seed, lane, epoch)[place])
        copy, shard = divmod(place, len(shards))
        return epoch, shards[shard], copy

    def documents(self, lane: int, position: int, document: int) -> Generator[LaneDocuments, None, None]:
        """The lane's documents from that place on: of the (shard, copy) at `position`, from line `document` on."""
        per_epoch = self.per_epoch(lane)
        met: _Met | None = None  # of the epoch, where it is seen from its beginning
        empty = skipped = 0
        while self.end is None or position < self.end:
            if position % per_epoch == 0 and document == 0:
                met = _Met()
            with closing(self._unit(lane, position, document, met or _Met())) as pieces:
                for piece in pieces:
                    skipped += piece.skipped
                    if len(piece):
                        yield piece if piece.skipped == skipped else replace(piece, skipped=skipped)
                        met, empty, skipped = None, 0, 0
            position, document = position + 1, 0
            if met is not None and position % per_epoch == 0:
                empty += 1
                if not met.drawn or empty == MOST_EMPTY:
                    raise self._nothing(lane)
        if skipped:
            nothing = np.zeros(0, np.int64)
            yield LaneDocuments(position - 1, nothing, [], [], nothing, nothing, skipped)

    def _unit(self, lane: int, position: int, document: int, met: _Met) -> Generator[LaneDocuments, None, None]:
        """The documents of one (shard, copy) from line `document` on; bad lines behind the last one end it, alone."""
        epoch, index, copy = self.at(lane, position)
        wanted = self._wanted(copy)
        if wanted == ():
            return
        shard = self.corpus.shards[index]
        if shard.path == STANDARD_INPUT and position > 0:
            raise PilekitError("standard input (-) can be read only once; give epochs=1, or save it to a file first")
        version = self.versions[index] if self.versions else ""
        check_version(shard.path, version)
        bad: deque[int] = deque()
        with read(shard, wanted, self.on_error, manifest=self.corpus.manifest, start=document) as reader:
            batches = self._chosen(_with_bad_lines(reader, bad), epoch, index, copy, met)
            least = document
            for batch in Pipeline(self.stages)(batches):
                if not len(batch):
                    continue
                if batch.numbers[0] < least or bool(np.any(np.diff(batch.numbers) <= 0)):
                    raise PilekitError(
                        f"{visible(shard.name)}: a stage of filters= gives its documents in another order, or twice; "
                        "stages may drop documents and change their text"
                    )
                least = int(batch.numbers[-1]) + 1
                yield from self._pieces(batch, position, index, bad)
        check_version(shard.path, version)
        if bad:
            nothing = np.zeros(0, np.int64)
            yield LaneDocuments(position, nothing, [], [], nothing, nothing, len(bad))

    def _wanted(self, copy: int) -> tuple[str, ...] | None:
        """The subsets of which some documents are read in this copy; None: of all."""
        if self.subsets is None and copy == 0:
            return None
        names = self.subsets if self.subsets is not None else tuple(self.repeats)
        return tuple(name for name in names if self.repeats.get(name, 1.0) > copy)

    def _chosen(
        self, batches: Iterator[DocumentBatch], epoch: int, shard: int, copy: int, met: _Met
    ) -> Generator[DocumentBatch, None, None]:
        """The documents that are read in this copy, by their repeats."""
        for batch in batches:
            if self.repeats:
                factors = np.fromiter((self.repeats.get(name, 1.0) for name in batch.subsets), np.float64, len(batch))
                batch = batch.where(stays(self.seed, epoch, copy, factors, np.array(shard), batch.numbers))
                met.drawn = met.drawn or bool(np.any(factors % 1))
            if len(batch):
                yield batch

    def _pieces(
        self, batch: DocumentBatch, position: int, shard: int, bad: deque[int]
    ) -> Generator[LaneDocuments, None, None]:
        """A batch, cut where bad lines are, so that each is told with the very document that follows it.

        Who goes on from a document then counts the bad lines behind it, and those only.
        """
        starts: dict[int, int] = {0: 0}
        while bad and bad[0] < batch.numbers[-1]:
            start = int(np.searchsorted(batch.numbers, bad.popleft()))
            starts[start] = starts.get(start, 0) + 1
        for begin, end in zip(starts, [*list(starts)[1:], len(batch)], strict=True):
            numbers: Int64 = batch.numbers[begin:end]
            yield LaneDocuments(
                position,
                numbers,
                batch.texts[begin:end],
                batch.subsets[begin:end],
                np.full(len(numbers), shard, np.int64),
                numbers,
                starts[begin],
                batch.raw_lines()[begin:end] if self.records else None,
            )

    def _nothing(self, lane: int) -> PilekitError:
        shards = [visible(self.corpus.shards[index].name, 80) for index in self.shards_of(lane)]
        names = ", ".join(shards[:5]) + (f" and {len(shards) - 5:,} more" if len(shards) > 5 else "")
        what = "of " + visible(", ".join(self.subsets), 200) if self.subsets else "at all"
        return PilekitError(
            f"no documents {what} are left in {names}, all that lane {lane} of {self.lanes} reads in an epoch; select "
            "more (`pilekit stats` shows what there is), give fewer lanes=, or write the shards anew with `pilekit "
            "reframe`, so that lanes share all shards"
        )


@dataclass(slots=True)
class _Met:
    """What an epoch without documents had: `drawn`, such as are used in some epochs only, by their repeats."""

    drawn: bool = False


def _with_bad_lines(reader: ShardReader, bad: deque[int]) -> Generator[DocumentBatch, None, None]:
    """The reader's batches; numbers of the bad lines met go into `bad`, in increasing order, before what follows."""
    told = 0

    def tell() -> None:
        nonlocal told
        listed = [example.line - 1 for example in reader.skipped.examples]
        reader.skipped.examples.clear()  # Only so many are listed at a time; of more, the rest counts as the last.
        count, told = reader.skipped.count - told, reader.skipped.count
        bad.extend(listed + listed[-1:] * (count - len(listed)))

    for batch in reader:
        tell()
        yield batch
    tell()


@lru_cache(maxsize=256)
def _order(n: int, seed: int, lane: int, epoch: int) -> Int64:
    return permutation(n, seed, _SHARDS, lane, epoch)
