"""`Iteration`: a rank's batches from a record on, and the record of the batches that were handed out.

A `Record` (record.py) keeps the place of each lane. Its changes travel with the batches, and it takes them in when a
batch is handed to the training loop. So batches that were only read ahead do not count. In one process, iterating
records each batch. `stream.loader()` and a loop over a stock DataLoader call `advance` for each batch instead, because
DataLoader workers have copies of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError
from pilekit.stream.batch.build_batches import BatchBuilder, Item, build_batches
from pilekit.stream.finite_pass import Passes, pass_part
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.pack.subset_lanes import Mixture, SubsetLanes
from pilekit.stream.pack.window import Place
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.read.random_access import RandomAccess
from pilekit.stream.read.sequential import Sequential
from pilekit.stream.record import Record, WorkerPart, state_of


class Iteration:
    """The batches of one rank, from the beginning of the stream on.

    documents             the stream's documents
    make_builder          (source of the lanes, rows that a step takes from a lane) -> the builder of batches
    share, unit, passes   this rank's part of the grid, documents in a unit, and the passes of a finite stream
    mixture               of a stream whose weights change with the step

    builder               makes the batches
    lane_starts           int64 [L, n]: the places at which all lanes begin
    record                of the batches that were handed out
    is_loaded             whether no batch was handed out since a state was loaded
    resumed_at            (optimizer step, places of all lanes before it) of the latest resume; None: inside a step
    worker_part           in a DataLoader worker that iterates: its part of the batches
    """

    def __init__(
        self,
        documents: StreamDocuments,
        make_builder: Callable[[LaneSource | SubsetLanes, int], BatchBuilder],
        share: Share,
        unit: int,
        passes: Passes | None,
        mixture: Mixture | None = None,
    ) -> None:
        self._documents, self._make_builder = documents, make_builder
        self._iterators = 0  # the number of iterators so far; only the batches of the last one count
        self.use_grid(share, unit, passes, mixture)
        self.resume_from(Record(self.lane_starts.copy(), 0, np.zeros((len(documents.subset_ids), 2), np.int64)))

    def use_grid(self, share: Share, unit: int, passes: Passes | None, mixture: Mixture | None = None) -> None:
        """Read this share of a grid; `resume_from` must follow."""
        documents, lanes, end = self._documents, share.grid.lanes, None
        self.share, self.unit, self.passes, self.mixture = share, unit, passes, mixture
        if mixture is not None:
            subset_lanes = SubsetLanes(documents, mixture, share.grid, unit)
            self.lane_starts = subset_lanes.starts()
            self.builder = self._make_builder(subset_lanes, share.grid.per_visit)
            return
        self.lane_starts = np.zeros((lanes, 3), np.int64)
        if share.grid.plan == "random":
            self.lane_starts[:, 0] = np.arange(lanes)
        if passes is not None:
            self.lane_starts[0, 0], end = passes.borders(documents.positions(unit))
        source: LaneSource
        if share.grid.plan == "sequential":
            source = Sequential(documents, lanes, end)
        else:
            source = RandomAccess(documents, documents.sequence(unit, lanes), end=end)
        self.builder = self._make_builder(source, share.grid.per_visit)

    def resume_from(
        self, record: Record, *, is_loaded: bool = False, loaded_part: tuple[int, int, int] | None = None
    ) -> None:
        """Resume from this record.

        is_loaded     whether it comes from a state
        loaded_part   the `worker_part` in that state
        """
        step, batch_of_step = divmod(record.batch, self.share.grad_accum)
        self.record, self.is_loaded = record, is_loaded
        self.resumed_at = None if batch_of_step else (step, record.places.copy())
        self.worker_part: WorkerPart | None = None
        self._loaded_part = loaded_part
        self._worker_has_begun = False
        self.begin()

    def begin(self) -> int:
        """Begin to iterate after the last batch that was handed out; returns the number of this iterator."""
        self._before_iterator, self._counts_by_advance = self.record.copy(), False
        self._iterators += 1
        return self._iterators

    def recorded_batches(self) -> Generator[Item, None, None]:
        """The batches after the record, each recorded when it is given."""
        iterator = self.begin()
        for batch in self._remaining_batches(WorkerPart()):
            if not self._counts_by_advance:
                self._count(self.record, state_of(batch))
            yield batch
            if self._iterators != iterator:
                raise PilekitError(
                    "this iterator's batches no longer count, because a state was loaded, an epoch set or another "
                    "iteration begun since; resume with a new iter(stream)"
                )
        self.end_pass()

    def unrecorded_batches(self) -> Generator[Item, None, None]:
        """The batches after the record: all of them, or in a DataLoader worker that worker's batches."""
        worker = get_worker_info()
        if worker is None:
            return self._remaining_batches(WorkerPart())
        part = WorkerPart(worker.id, self.share.workers(worker.num_workers))
        if self._loaded_part is not None:
            part = part.resumed(self._loaded_part)
        self.worker_part = part
        return self._batches_of_worker(part)

    def _batches_of_worker(self, part: WorkerPart) -> Generator[Item, None, None]:
        """The worker's batches. Before each batch is given, the worker's own state moves past it."""
        if self._worker_has_begun:
            raise PilekitError(
                "a DataLoader with persistent_workers=True would resume where its workers stand, not behind the last "
                "batch that was handed out; set persistent_workers=False"
            )
        self._worker_has_begun = True
        for batch in self._remaining_batches(part) if part.worker < part.workers else ():
            self.record.take(state_of(batch))
            self.worker_part = part = part._replace(given_batches=part.given_batches + 1)
            yield batch

    def _remaining_batches(self, part: WorkerPart) -> Generator[Item, None, None]:
        """The remaining batches of this part; nothing is recorded."""
        record = self.record
        if self.passes is None:
            return build_batches(self.builder, self.share, record.places, part.numbers(record.batch))
        begin, place = (Place.of(places[0]) for places in (self.lane_starts, record.places))
        # A state that was just loaded may be at the end: then nothing is left. Otherwise an ended pass begins again.
        return pass_part(
            self.builder, self.share, self.passes, begin, place, record.batch, part, again=not self.is_loaded
        )

    def advance(self, batch: Any) -> None:
        """Record this batch and remove its state. Until the next iterator begins, iterated batches do not count."""
        state = state_of(batch)
        # If this is not the next batch, iterating has counted it already.
        is_counted = not self._counts_by_advance and int(state[0]) != self.record.batch
        self._count(self._before_iterator.copy() if is_counted else self.record, state)
        self._counts_by_advance = True
        if isinstance(batch, dict):
            del batch["stream_state"]
        else:
            batch.stream_state = None

    def _count(self, record: Record, state: Int64) -> None:
        if self.passes is not None and record.batch and not int(state[0]):
            record.places, record.batch = self.lane_starts.copy(), 0  # the pass had ended, so a new one began
        record.add(state)
        self.record, self.is_loaded = record, False

    def end_pass(self) -> None:
        """Note that an iterator has given its last batch: a finite pass begins again."""
        if self.passes is not None:
            self.begin_pass(self.passes)

    def begin_pass(self, passes: Passes) -> None:
        """Stand at the beginning of these passes, with the counts of all batches so far."""
        self.use_grid(self.share, self.unit, passes, self.mixture)
        self.resume_from(replace(self.record, places=self.lane_starts.copy(), batch=0))
