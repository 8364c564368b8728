"""Raw mode: a stream of documents as they are, in the order, and with the ranks, workers and state, of a packed one.

A sample is one document: there is no window, and the place of a lane is behind the last document that it gave. Records
are decoded once more for their `meta`, of those documents only that are handed out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import torch

from pilekit.errors import PilekitError
from pilekit.shards.random_access.document_reader import StoredDocument
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Place
from pilekit.stream.read.lane_documents import LaneDocuments, LaneSource
from pilekit.stream.state import HEAD, batch_state


class RawDocument(StoredDocument):
    """A `StoredDocument` from a stream, with its `stream_state`: int64, for `PileStream.advance`."""

    stream_state: Int64 | None = None


class RawBatch(list[StoredDocument]):
    """Some documents from a stream, with their `stream_state`: int64, for `PileStream.advance`."""

    stream_state: Int64 | None = None


@dataclass(frozen=True)
class RawGiven:
    """Documents that a lane gives: `count` of `piece` from number `first` of it on."""

    piece: LaneDocuments
    first: int
    count: int


class RawLane:
    """Lane `lane` of `source`, from `place` on, a document at a time; `close` it when done."""

    def __init__(self, source: LaneSource, lane: int, place: Place) -> None:
        self.place = place
        self._pieces = source.documents(lane, place.position, place.document)
        self._piece: LaneDocuments | None = None
        self._next = 0
        self._skipped = 0  # bad lines that no document has followed yet

    def give(self, count: int) -> list[RawGiven]:
        """The lane's next `count` documents; fewer only where the source ends."""
        given = []
        while count and (piece := self._with_documents()) is not None:
            some = min(count, len(piece) - self._next)
            given.append(RawGiven(piece, self._next, some))
            self._next += some
            count -= some
            self.place = Place(piece.position, int(piece.order[self._next - 1]) + 1)
        return given

    def close(self) -> None:
        """Close what the source has opened for this lane."""
        if isinstance(self._pieces, Generator):
            self._pieces.close()

    def _with_documents(self) -> LaneDocuments | None:
        while self._piece is None or self._next == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return None
            self._skipped += piece.skipped
            if len(piece):
                self._piece, self._next = replace(piece, skipped=self._skipped), 0
                self._skipped = 0
        return self._piece


@dataclass(frozen=True)
class RawForm:
    """Samples are documents; a batch of one is the `RawDocument` itself, of more a `RawBatch`.

    text_field   where records keep their text
    subset_ids   by subset name; names that it lacks get `other_subset`
    """

    shard_names: Sequence[str]
    text_field: str
    subset_ids: dict[str, int]
    other_subset: int

    @property
    def padded_by_first(self) -> bool:
        """As torch's DistributedSampler does it."""
        return True

    def lane(self, source: LaneSource, lane: int, place: Place) -> RawLane:
        """A lane that packs nothing."""
        return RawLane(source, lane, place)

    def batch(
        self, share: Share, number: int, given: Sequence[RawGiven], lanes: Int64, places: Int64
    ) -> RawDocument | RawBatch:
        """The documents given."""
        documents = list(self._documents(given))
        ids = [self.subset_ids.get(document.subset, self.other_subset) for document in documents]
        subsets, times = np.unique(np.array(ids, np.int64), return_counts=True)
        skipped = sum(some.piece.skipped for some in given if some.first == 0)
        state = batch_state(number, lanes, places, len(documents), skipped, subsets, times, np.zeros_like(times))
        found: RawDocument | RawBatch
        found = RawDocument(*documents[0]) if share.batch_size == 1 else RawBatch(documents)
        found.stream_state = state
        return found

    def named(self, given: Sequence[RawGiven]) -> list[list[tuple[str, int]]]:
        """A sample is one document."""
        return [
            [(self.shard_names[some.piece.shards[index]], int(some.piece.numbers[index]))]
            for some in given
            for index in range(some.first, some.first + some.count)
        ]

    def _documents(self, given: Sequence[RawGiven]) -> Iterator[StoredDocument]:
        for some in given:
            piece = some.piece
            for index in range(some.first, some.first + some.count):
                yield StoredDocument(
                    piece.texts[index],
                    self._meta(piece, index),
                    piece.subsets[index],
                    int(piece.numbers[index]),
                    self.shard_names[piece.shards[index]],
                )

    def _meta(self, piece: LaneDocuments, index: int) -> dict[str, Any]:
        assert piece.records is not None
        record = orjson.loads(piece.records[index])
        meta = record.get("meta")
        if not isinstance(meta, dict):
            meta = {name: value for name, value in record.items() if name != self.text_field}
        return meta


def state_of(item: Any) -> Int64:
    """The state that comes with an item of a stream: a `Batch`, or documents."""
    return item.stream_state if isinstance(item, RawDocument | RawBatch) else item["stream_state"].numpy()  # type: ignore[return-value]


def taken_state(item: object) -> Int64:
    """The same, taken out of the item; PilekitError if it has none."""
    state: Int64 | None = None
    if isinstance(item, RawDocument | RawBatch):
        state, item.stream_state = item.stream_state, None
    elif isinstance(item, MutableMapping) and _is_state(item.get("stream_state")):
        state = item.pop("stream_state").cpu().numpy()
    if state is None:
        raise PilekitError(
            "advance() needs a batch as the loader gave it, with its stream_state; call it once for each batch, before "
            "converting it. Of single documents a stock DataLoader loses it, unless it is given collate_fn=lambda "
            "document: document; stream.loader() keeps it"
        )
    return state


def _is_state(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.dim() == 1 and len(value) >= HEAD
