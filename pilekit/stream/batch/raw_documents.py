"""Raw mode: documents as they are, in the order, and with the ranks, workers and state, of a packed stream.

A sample is one document, and the place of a lane is behind the last document that it gave.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import orjson

from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Place
from pilekit.stream.read.lane_documents import LaneDocuments, LaneSource
from pilekit.stream.record import batch_state


class RawDocument(StoredDocument):
    """A `StoredDocument` with its `stream_state`: int64, for `PileStream.advance`."""

    stream_state: Int64 | None = None


class RawBatch(list[StoredDocument]):
    """Several documents with their `stream_state`."""

    stream_state: Int64 | None = None


@dataclass(frozen=True)
class RawSample:
    """A document that a lane gives: number `index` of `piece`, after `skipped` bad lines."""

    piece: LaneDocuments
    index: int
    skipped: int
    count: int = 1


class RawLane:
    """The documents of lane `lane` of `source`, from `place` on; `close` it when done."""

    def __init__(self, source: LaneSource, lane: int, place: Place) -> None:
        self.place = place
        self._pieces = source.documents(lane, place.position, place.document)
        self._samples = self._read()

    def give(self, count: int) -> list[RawSample]:
        """The lane's next `count` documents; fewer only where the source ends."""
        return list(islice(self._samples, count))

    def close(self) -> None:
        """Close what the source has opened for this lane."""
        if isinstance(self._pieces, Generator):
            self._pieces.close()

    def _read(self) -> Iterator[RawSample]:
        skipped = 0
        for piece in self._pieces:
            skipped += piece.skipped
            for index, order in enumerate(piece.order.tolist()):
                self.place = Place(piece.position, order + 1)
                yield RawSample(piece, index, skipped)
                skipped = 0


@dataclass(frozen=True)
class RawBatches:
    """A `BatchBuilder`: a batch of one is a `RawDocument`, of more a `RawBatch`.

    text_field   where records keep their text
    subset_ids   by subset name; names that it lacks get `other_subset`
    """

    shard_names: Sequence[str]
    text_field: str
    subset_ids: dict[str, int]
    other_subset: int

    padded_by_first = True
    """As torch's DistributedSampler does it."""

    def lane(self, source: LaneSource, lane: int, place: Place) -> RawLane:
        """A lane that packs nothing."""
        return RawLane(source, lane, place)

    def batch(
        self, share: Share, number: int, given: Sequence[RawSample], lanes: Int64, places: Int64
    ) -> RawDocument | RawBatch:
        """The documents given."""
        documents = [self._document(sample.piece, sample.index) for sample in given]
        ids = [self.subset_ids.get(document.subset, self.other_subset) for document in documents]
        subsets, times = np.unique(np.array(ids, np.int64), return_counts=True)
        skipped = sum(sample.skipped for sample in given)
        found = RawDocument(*documents[0]) if share.batch_size == 1 else RawBatch(documents)
        found.stream_state = batch_state(
            number, lanes, places, len(documents), skipped, subsets, times, np.zeros_like(times)
        )
        return found

    def named(self, given: Sequence[RawSample]) -> list[list[tuple[str, int]]]:
        """A sample is one document."""
        return [[(self.shard_names[s.piece.shards[s.index]], int(s.piece.numbers[s.index]))] for s in given]

    def _document(self, piece: LaneDocuments, index: int) -> StoredDocument:
        assert piece.records is not None
        record = orjson.loads(piece.records[index])
        meta = record.get("meta")
        if not isinstance(meta, dict):
            meta = {name: value for name, value in record.items() if name != self.text_field}
        shard, number = self.shard_names[piece.shards[index]], int(piece.numbers[index])
        return StoredDocument(piece.texts[index], meta, piece.subsets[index], number, shard)
