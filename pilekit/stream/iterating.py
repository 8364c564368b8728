"""`Batches`: the iteration of a `PileStream`, in one process or in DataLoader workers.

A batch is recorded when it is handed out to the training loop. A worker records its own batches in its own copy.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from pilekit.errors import PilekitError
from pilekit.stream.arguments import check_number
from pilekit.stream.batch.batch import Batch, BatchWriter
from pilekit.stream.batch.build_batches import BatchBuilder, Item, build_batches
from pilekit.stream.finite_pass import Passes, pass_part
from pilekit.stream.loader import refuse_second_sharding
from pilekit.stream.order.lane_grid import Grid, Share
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.pack.tokenized import Encoding
from pilekit.stream.pack.window import Place
from pilekit.stream.read.document_selection import DocumentSelection
from pilekit.stream.record import HandedOut, Record, WorkerPart, state_of, take_state

logger = logging.getLogger(__name__)

_ENDLESS = 1 << 62


class Batches(IterableDataset[Batch]):
    """The part of `PileStream` that iterates. `_settle` and `_start` must be called before."""

    rank: int
    world_size: int
    share: Share
    _unit: int
    _passes: Passes | None
    _selected: DocumentSelection
    _encoding: Encoding
    _writer: BatchWriter | None

    def _settle(self, grid: Grid, unit: int, grad_accum: int) -> None:
        """Use this grid: set this rank's share of it and the source of its lanes."""
        self.share, self._unit = grid.share(self.rank, self.world_size, grad_accum), unit
        end = None if self._passes is None else self._passes.borders(self._selected.positions(unit))[1]
        source = self._selected.source(grid.lanes, unit, end)
        self._builder = BatchBuilder(source, self._encoding, self._writer)

    def _start(self, record: Record, loaded: bool = False) -> None:
        """Resume from this record."""
        step, inside = divmod(record.batch, self.grad_accum)
        # The places of all lanes before a step; `peek` can count from there.
        self._known = None if inside else (step, record.places.copy())
        self._handed_out = HandedOut(record, None if self._passes is None else self._first(), loaded)
        self._part: WorkerPart | None = None  # in a DataLoader worker that iterates: its part of the batches
        self._begun = False  # whether this DataLoader worker has iterated
        self._loaded_part: object = None  # the worker's part in the state that was loaded into this worker
        self.begin()

    def _first(self) -> Int64:
        """The places at which all lanes begin, int64 [L, 3]."""
        places = self._selected.first(self.grid.lanes)
        if self._passes is not None:
            places[0, 0] = self._passes.borders(self._selected.positions(self._unit))[0]
        return places

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
        refuse_second_sharding(self.world_size)
        worker = get_worker_info()
        if worker is None:
            return self._recorded_batches()
        if worker.id == 0:
            self.warn_of_idle_workers(worker.num_workers)
        return self.unrecorded_batches()

    def _recorded_batches(self) -> Generator[Item, None, None]:
        iteration = self.begin()
        for batch in self._made(WorkerPart()):
            self._handed_out.iterated(state_of(batch))
            yield batch
            if self._iteration is not iteration:
                raise PilekitError(
                    "this iterator's batches no longer count, because a state was loaded, an epoch set or another "
                    "iteration begun since; resume with a new iter(stream)"
                )
        self.pass_ended()

    def unrecorded_batches(self) -> Generator[Item, None, None]:
        """The batches after the record: all of them, or in a DataLoader worker that worker's batches."""
        worker = get_worker_info()
        if worker is None:
            return self._made(WorkerPart())
        part = WorkerPart(worker.id, self.share.workers(worker.num_workers))
        if self._loaded_part is not None:
            part = part.resumed(self._loaded_part)
        self._part = part
        return self._made_by_worker(part)

    def _made_by_worker(self, part: WorkerPart) -> Generator[Item, None, None]:
        """The worker's batches. Before each batch is given, the worker's own state moves past it."""
        if self._begun:
            raise PilekitError(
                "a DataLoader with persistent_workers=True would resume where its workers stand, not behind the last "
                "batch that was handed out; set persistent_workers=False"
            )
        self._begun = True
        for batch in self._made(part) if part.worker < part.workers else ():
            self._handed_out.record.take(state_of(batch))
            self._part = part = part._replace(made=part.made + 1)
            yield batch

    def _made(self, part: WorkerPart) -> Generator[Item, None, None]:
        """The remaining batches of this part; nothing is recorded."""
        record = self._handed_out.record
        if self._passes is None:
            numbers = range(record.batch + part.worker, _ENDLESS, part.workers)[part.made :]
            return build_batches(self._builder, self.share, record.places, numbers)
        begin, place = (Place(*places[0].tolist()) for places in (self._first(), record.places))
        # A state that was just loaded may be at the end: then nothing is left. Otherwise an ended pass begins again.
        return pass_part(
            self._builder, self.share, self._passes, begin, place, record.batch, part, again=not self._handed_out.loaded
        )

    def begin(self) -> object:
        """Begin an iteration, after the last batch that the iteration before handed out."""
        self._handed_out.begin()
        self._iteration = object()
        return self._iteration

    def pass_ended(self) -> None:
        """Note that an iteration has given its last batch: a finite pass begins again."""
        if self._passes is not None:
            self._begin_pass(self._passes)

    def _begin_pass(self, passes: Passes) -> None:
        self._passes = passes
        self._settle(self.grid, self._unit, self.grad_accum)
        self._start(replace(self._handed_out.record, places=self._first(), batch=0))

    def warn_of_idle_workers(self, asked: int) -> None:
        """Warn if fewer workers than asked for can be active."""
        if (active := self.share.workers(asked)) < asked:
            logger.warning(
                "%d of %d workers are active, as each lane belongs to one worker; counts that are used in full are %s",
                *(active, asked, ", ".join(map(str, self.share.worker_counts()))),
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next finite pass, as a DistributedSampler's `set_epoch` does.

        The pass starts at its beginning, or resumes if a state of that epoch was just loaded. An endless stream moves
        through its epochs by itself, each in another order, so `set_epoch` does nothing.
        """
        check_number("epoch", epoch, 0)
        if self._passes is not None and not (self._handed_out.loaded and epoch == self._passes.epoch):
            self._begin_pass(replace(self._passes, epoch=epoch))

    def advance(self, batch: Any) -> None:
        """Record that `batch` was handed out, and remove its `stream_state`: `state_dict` now resumes after it.

        With a stock DataLoader, call it for every batch, in order. `loader()` calls it by itself. A loop over the
        stream itself may call it to count a batch only from this point.
        """
        self._handed_out.advance(state_of(batch))
        take_state(batch)
