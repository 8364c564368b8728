"""`RecordedStream`: iterating a stream, and the record of the batches that were handed out.

In one process, iterating the stream records each batch. `stream.loader()` records for any number of workers; with a
stock DataLoader, `stream.advance(batch)` does. A batch carries what it changes, so reading ahead does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from pilekit.errors import PilekitError
from pilekit.stream import finite_pass
from pilekit.stream.batch.batch import Batch
from pilekit.stream.batch.build_batches import BatchBuilder, build_batches
from pilekit.stream.finite_pass import Passes
from pilekit.stream.order.lane_grid import Grid, Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.lane import Place
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.record import Record, state_of, taken_state
from pilekit.stream.sharded_twice import refuse_second_sharding
from pilekit.stream.worker_part import WorkerPart, work_in_background

logger = logging.getLogger(__name__)

_ENDLESS = 1 << 62


class RecordedStream(IterableDataset[Batch]):
    """What `PileStream` does once it is settled which lanes it reads.

    share     this rank's part of the grid
    seq_len   tokens in a row
    is_raw    whether the stream gives documents as they are (tokenizer=None)
    """

    share: Share
    seq_len: int
    is_raw: bool
    _source: LaneSource
    _builder: BatchBuilder
    _passes: Passes | None

    def _first(self) -> Int64:
        """Where all lanes begin, int64 [L, 3]."""
        raise NotImplementedError

    def _begin_pass(self, passes: Passes) -> None:
        """Begin these finite passes from their first document."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Resume where `state` was taken."""
        raise NotImplementedError

    def _start(self, record: Record) -> None:
        """Resume from this record."""
        # Where all lanes stood at a step, from which `peek` can count.
        self._known = (
            (record.batch // self.grad_accum, record.places.copy()) if not record.batch % self.grad_accum else None
        )
        self._advanced = self._iterated = record  # by `advance`, by iterating
        self._told = self._loaded = False  # whether `advance` was called in this iteration, a state was just loaded
        self._begun = False  # whether this DataLoader's worker has iterated
        self._part: WorkerPart | None = None  # of this DataLoader's worker, once it iterates
        self._loaded_part: object = None  # what a state loaded into a worker says of its part
        self.begin()

    @property
    def grid(self) -> Grid:
        """The grid of lanes that the stream reads."""
        return self.share.grid

    @property
    def global_batch_size(self) -> int:
        """Rows in an optimizer step over all ranks."""
        return self.grid.global_batch_size

    @property
    def batch_size(self) -> int:
        """Rows in each batch of this rank."""
        return self.share.batch_size

    @property
    def grad_accum(self) -> int:
        """Batches of this rank that make an optimizer step."""
        return self.share.grad_accum

    def __iter__(self) -> Generator[Batch, None, None]:
        """Resume from the record; one iterator of a stream at a time."""
        refuse_second_sharding(self.share.world_size)
        return self.batches()

    def batches(self) -> Generator[Batch, None, None]:
        """The batches from the record on: all of them, or in a DataLoader's worker this worker's."""
        worker = get_worker_info()
        if worker is None:
            return self._recorded()
        active = self.share.workers(worker.num_workers)
        if active < worker.num_workers and worker.id == 0:
            logger.warning("%s", self.few_workers(worker.num_workers))
        self._part = WorkerPart(worker.id, active)
        if self._loaded_part is not None:
            self._part = self._part.resumed(self._loaded_part)
        return self._in_worker(self._part)

    def few_workers(self, asked: int) -> str:
        """The warning for more workers than can be active."""
        active, share = self.share.workers(asked), self.share
        turns = [n for n in range(1, share.grad_accum * share.grid.columns + 1) if share.workers(n) == n]
        return (
            f"{active} of {asked} workers are active, as each lane belongs to one worker; counts that are used in full "
            f"are {', '.join(map(str, turns))}"
        )

    def _made_by(self, part: WorkerPart) -> Generator[Batch, None, None]:
        """The remaining batches of this part; nothing is recorded."""
        record = self._current()
        if self._passes is None:
            numbers = range(record.batch + part.worker, _ENDLESS, part.workers)[part.made :]
            return build_batches(self._source, self._builder, self.share, record.places, numbers)
        begin, place = (Place(*places[0].tolist()) for places in (self._first(), record.places))
        of_pass = (self._source, self._builder, self.share, begin, place, record.batch, part, self._passes.drop_last)
        # A state that was just loaded may say that nothing is left; else an empty rest begins the pass again.
        return finite_pass.part_of(*of_pass, again=not self._loaded)

    def pass_ended(self) -> None:
        """An iteration has given its last batch: finite passes begin again."""
        if self._passes is not None:
            self._begin_pass(self._passes)

    def _recorded(self) -> Generator[Batch, None, None]:
        self.begin()
        record = self._iterated
        for batch in self._made_by(WorkerPart(0, 1)):
            self._add(record, state_of(batch))
            yield batch
            if self._iterated is not record:
                raise PilekitError(
                    "this iterator's batches count no longer, as a state was loaded, an epoch set or another iteration "
                    "begun since; resume with a new iter(stream)"
                )
        self.pass_ended()

    def _in_worker(self, part: WorkerPart) -> Generator[Batch, None, None]:
        """The worker's batches; the worker's own state is behind each batch when it is given."""
        if self._begun:
            raise PilekitError(
                "a DataLoader with persistent_workers=True would resume where its workers stand, not behind the last "
                "batch that was handed out; set persistent_workers=False"
            )
        self._begun = True
        if part.worker >= part.workers:
            return
        work_in_background()
        record = self._current()
        for batch in self._made_by(part):
            record.take(state_of(batch))
            self._part = part = part.after_one()
            yield batch

    def begin(self) -> None:
        """An iteration begins: it resumes behind the batches that the one before has handed out."""
        self._advanced = self._current()
        self._iterated = self._advanced.copy()
        self._told = self._begun = False

    def _current(self) -> Record:
        """The record by `advance`, once it was called in this iteration; else the record by iterating."""
        return self._advanced if self._told else self._iterated

    def _add(self, record: Record, state: Int64) -> None:
        if self._passes is not None and record.batch and not int(state[0]):
            record.places, record.batch = self._first(), 0  # nothing was left of the last pass, so a whole one began
        record.add(state)
        self._loaded = False

    def advance(self, batch: Any) -> None:
        """Record that `batch` was handed out, and take its `stream_state` out of it: `state_dict` is now behind it.

        With a stock DataLoader the training loop calls this for every batch, in their order; `loader()` does it by
        itself. A loop that iterates the stream itself may call it, to count a batch only from here on.
        """
        state = taken_state(batch)
        if not self._told and int(state[0]) == self._iterated.batch:  # the batch is of another iterator
            self._advanced = self._iterated.copy()
        self._add(self._advanced, state)
        self._told = True
