"""`PileStream`: raw shards in, packed batches out, in one order on any number of ranks and workers.

No stage knows the number of ranks or workers. All documents stand in one shared sequence of units (unit_sequence.py),
which is divided among lanes. Each lane tokenizes and packs by itself (lane.py), and an optimizer step takes rows from
fixed lanes (lane_grid.py). Ranks, micro-batches and DataLoader workers only decide which process makes which part of a
step. So a step's content is the same for every valid world size, accumulation and number of workers, and a run can
resume with other numbers of these.

stream_parts.py makes a stream from its settings. iteration.py makes the batches, and records the place of each lane
after the batches that were handed out. This file reads and writes the state. `stream.loader()` records each batch, with
any number of workers. Iterating the stream in one process records them too. With a stock DataLoader,
`stream.advance(batch)` records them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from pilekit.artifacts.checked import checked
from pilekit.artifacts.settings import FromZero, takes_settings
from pilekit.display.progress import Reached
from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, counted
from pilekit.stream.batch.batch import Batch, checked_outputs
from pilekit.stream.batch.build_batches import rows_of_step
from pilekit.stream.explanation import Explanation, explain, order_of
from pilekit.stream.finite_pass import Epoch
from pilekit.stream.loader import StreamLoader, refuse_second_sharding
from pilekit.stream.order.lane_grid import Grid, Share
from pilekit.stream.order.schedule import NEVER, Schedule, check_extension
from pilekit.stream.order.topology import rank_of_world
from pilekit.stream.pack.subset_lanes import moved_columns, resumed_mixture
from pilekit.stream.pack.window import Window, padding, pieces_of
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.stream.record import Record
from pilekit.stream.settings import StreamSettings
from pilekit.stream.state import (
    Counts,
    StatePlan,
    StreamState,
    accumulation_for,
    changed_fields,
    grid_for,
    loaded_state,
    merge,
)
from pilekit.stream.stream_parts import stream_parts
from pilekit.tokenize import Tokenizer


class PileStream(NearestNames, IterableDataset[Batch]):
    """An iterable dataset of packed batches, straight from raw shards: endless, or with `epochs` in finite passes.

    An item is a `Batch`, a dict of tensors [batch_size, seq_len] that also names its documents. **With a DataLoader,
    pass batch_size=None**, because the stream makes batches itself. `stream.loader(num_workers=n)` is a DataLoader that
    also keeps the state. With a stock DataLoader, call `stream.advance(batch)` after each batch that you train on.

    With tokenizer=None an item is a list of batch_size `Document`s (text, meta, subset, number, shard), or one
    `Document` if batch_size is 1, the default then. In documents of Parquet shards, `meta` has only the label.
    If a finite pass does not divide evenly among ranks, its first documents are repeated at its end, as with
    DistributedSampler.

    From a URL, indexed shards are read by byte ranges of whole frames: a lane's window takes a request for each of its
    units. A failed request is repeated three times, and a web server may be silent for 30 seconds. Frames of 1 MiB are
    fetched about 1.7 times in an epoch of a large corpus, unless a `cache` can hold the corpus. A cache is for frames
    of lines under random access: it is an error for shards that are read in order.
    """

    @takes_settings(StreamSettings)
    def __init__(self, settings: StreamSettings) -> None:
        """Open the corpus, and stand at the beginning of the stream.

        settings  the fields of `StreamSettings`

        PilekitError for wrong arguments and for a selection without documents. If a world size, accumulation or batch
        size does not fit the grid, the PilekitError lists the sizes that do.
        """
        settings.check()
        self.is_raw, self.seq_len, self.packing = settings.tokenizer is None, settings.seq_len, settings.packing
        self.window, self.seed = settings.window, settings.seed
        outputs = checked_outputs(settings.outputs)
        self.rank, self.world_size = rank_of_world(settings.rank, settings.world_size, settings.num_replicas)
        self._lanes = None if settings.lanes == "auto" else settings.lanes
        sizes = (settings.batch_size, settings.grad_accum, settings.global_batch_size)
        self._sizes = (1, *sizes[1:]) if self.is_raw and sizes[0] is sizes[2] is None else sizes
        parts = stream_parts(settings, outputs, self.rank, self.world_size, self._sizes)
        self.corpus, self._tokenizer, self._documents = parts.corpus, parts.tokenizer, parts.documents
        self.subsets, self.repeats = parts.subsets, parts.repeats
        self.subset_names, self.shard_names = tuple(parts.documents.subset_ids), parts.shard_names
        self.without, self.altered = parts.without, parts.altered
        self._fingerprint, self._iteration = parts.fingerprint, parts.iteration
        self._changes: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        count = "" if self._documents.count is None else f"{counted(self._documents.count, 'document')}, "
        content = "untokenized" if self._tokenizer is None else f"rows of {self.seq_len} tokens"
        return f"PileStream({self.corpus!r}, {count}batches of {self.batch_size}, {content})"

    @property
    def share(self) -> Share:
        """This rank's part of the grid."""
        return self._iteration.share

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

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; PilekitError for a stream with tokenizer=None."""
        if self._tokenizer is None:
            raise PilekitError("a stream with tokenizer=None gives documents and has no tokenizer")
        return self._tokenizer

    def loader(self, num_workers: int = 0, **options: Any) -> StreamLoader:
        """A loader of this stream's batches that keeps its state; see `StreamLoader` for the options."""
        return StreamLoader(self, num_workers, **options)

    # Iteration

    def __iter__(self) -> Generator[Batch, None, None]:
        """Resume from the record; one iterator of a stream at a time."""
        refuse_second_sharding(self.world_size)
        iteration = self._iteration
        return iteration.recorded_batches() if get_worker_info() is None else iteration.unrecorded_batches()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next finite pass, as a DistributedSampler's `set_epoch` does.

        The pass starts at its beginning, or resumes if a state of that epoch was just loaded. An endless stream moves
        through its epochs by itself, each in another order, so `set_epoch` does nothing.
        """
        checked(epoch, Epoch, "epoch")
        iteration, passes = self._iteration, self._iteration.passes
        if passes is not None and not (iteration.is_loaded and epoch == passes.epoch):
            iteration.begin_pass(replace(passes, epoch=epoch))

    def advance(self, batch: Any) -> None:
        """Record that `batch` was handed out, and remove its `stream_state`: `state_dict` now resumes after it.

        With a stock DataLoader, call it for every batch, in order. `loader()` calls it by itself. A loop over the
        stream itself may call it to count a batch only from this point.
        """
        self._iteration.advance(batch)

    # State

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch, as a dict of JSON types; about 40 bytes a lane, at any point of the stream.

        It holds all lanes of the grid, but only the lanes of this rank are current: `merge_state_dicts` joins the
        states of all ranks. In a DataLoader's worker that has begun, it is the state of that worker, for that worker.
        """
        unit, passes, record = self._iteration.unit, self._iteration.passes, self._iteration.record
        if get_worker_info() is not None and self._iteration.worker_part is None:
            raise PilekitError(
                "a worker knows only its own part of the stream's state; use stream.loader(), or a DataLoader that "
                "leaves the state to stream.advance(batch) in the main process"
            )
        per_epoch = self._documents.per_epoch(unit)
        units = {} if self._iteration.mixture is None else dict(self._iteration.mixture.units)
        plan = StatePlan(grid=self.grid, passes=passes, unit=unit, window=self.window, per_epoch=per_epoch, units=units)
        step, batch = divmod(record.batch, self.grad_accum)
        return StreamState(
            fingerprint=self._fingerprint,
            plan=plan,
            step=step,
            batch=batch,
            rank=self.rank,
            worker=self._iteration.worker_part,
            world_size=self.world_size,
            grad_accum=self.grad_accum,
            lanes=record.places.astype("<i8", copy=False).tobytes(),
            counts=Counts(record.rows, record.skipped, record.by_subset(self.subset_names)),
            changes=self._changes,
        ).to_json()

    @staticmethod
    def merge_state_dicts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Join the states of all ranks, taken after the same batch; the result loads on any valid world size.

        PilekitError if a rank is missing or doubled, or if the states are not of one moment of one run.
        """
        return merge(parts).to_json()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Resume exactly after the last batch that was handed out when `state` was taken.

        state    the state of this rank (at the same world size), a merged state, or a list of the states of all ranks.
                 With the last two, world size, workers and, between optimizer steps, accumulation may differ
        strict   False: `subsets` and `repeats` may differ too, from here on. The state records the earlier values and
                 their last step. Documents of open windows may then be used again

        Weights by step may differ at steps that are not yet reached, and the state records that too. So they may begin
        there, in a run that has had one order of all documents. A window that a lane has open follows what was before
        to its end; nothing is lost or used again.

        PilekitError names the field if the state has other shards, tokenizer, seq_len, packing, seed, plan and so on.
        If its global_batch_size and grid do not fit this world size, the message lists valid numbers.
        """
        iteration, passes = self._iteration, self._iteration.passes
        in_worker = get_worker_info() is not None
        loaded, counts = loaded_state(state, self.rank, self.world_size, in_worker=in_worker)
        earlier_values = changed_fields(loaded, self._fingerprint, strict)
        settings: dict[str, Any] = {"plan": self.grid.plan, "window": self.window, "epochs": None}
        if passes is not None:
            settings |= {"epochs": passes.epochs, "drop_last": passes.drop_last}
        if self._lanes is not None:
            settings |= dict(zip(("rows", "columns"), self._lanes, strict=True))
        batch_size, grad_accum, global_batch_size = self._sizes
        if global_batch_size is not None:
            settings["global_batch_size"] = global_batch_size
        grid = grid_for(loaded, {**settings, "finite": self.grid.finite})
        accumulation = accumulation_for(loaded, grid, self.world_size, batch_size, grad_accum)
        share, mixture, changes = (
            grid.share(self.rank, self.world_size, accumulation),
            iteration.mixture,
            loaded.changes,
        )
        until = loaded.step + (loaded.batch > 0)
        was, now = loaded.fingerprint.get("weights"), self._fingerprint.get("weights")
        if was != now and loaded.worker is not None:
            raise PilekitError(
                "the state of a DataLoader's worker does not know which steps are done, so it resumes only with its "
                "own weights by step; use stream.loader() and its state"
            )
        if mixture is not None:
            mixture = resumed_mixture(mixture, was, loaded.plan.units, changes, until)
        else:
            check_extension(Schedule.from_json(was), NEVER, until)
        iteration.use_grid(share, loaded.plan.unit, loaded.plan.passes, mixture)
        places, self._changes = loaded.places(), list(changes)
        if was != now:
            self._changes.append({"until_step": until, "was": {"weights": was}})
        if until == 0 and loaded.worker is None:
            places = iteration.lane_starts.copy()
        elif was is not None or now is not None:
            names = () if mixture is None else mixture.names
            places = moved_columns(places, list(loaded.plan.units), iteration.lane_starts, names)
        elif earlier_values:
            places = self._documents.moved_places(places, loaded.plan.per_epoch, loaded.plan.unit)
        if earlier_values:
            self._changes.append({"until_step": loaded.step, "was": earlier_values})
        by_subset = np.zeros((len(self.subset_names), 2), np.int64)
        for name, pair in counts.subsets.items():
            by_subset[self._documents.ids_of([name])] += pair
        batch = loaded.step * accumulation + loaded.batch
        record = Record(places, batch, by_subset, counts.rows, counts.skipped)
        iteration.resume_from(record, is_loaded=True, loaded_part=loaded.worker)

    # Looking

    @property
    def order(self) -> str:
        """The order of the documents, as a line for people."""
        return order_of(self._documents, self._iteration.unit, self._iteration.mixture)

    def epochs_of(self, documents: Mapping[str, float]) -> dict[str, float]:
        """With weights by step: the epochs that so many documents are of each of their subsets; else nothing."""
        mixture = self._iteration.mixture
        names = () if mixture is None else mixture.names
        return {name: documents.get(name, 0) / self._documents.uses_of_subset(name) for name in names}

    def stats(self) -> dict[str, Any]:
        """Counts of all batches that this rank was handed since the run began, resumed parts included.

        rows, documents (that began), tokens (EOD counted), fill (tokens / room in the rows), padding (1 - fill),
        skipped (bad lines: of the whole corpus if it is indexed), and `subsets`: {name: {"documents", "tokens"}}. After
        a resume on another world size, rank 0 has the counts of all earlier ranks.
        """
        stats, skipped = self._iteration.record.stats(self.subset_names, self.seq_len), self._documents.skipped
        return stats if skipped is None else {**stats, "skipped": skipped}

    def peek(self, step: int, reached: Reached | None = None) -> list[list[tuple[str, int]]]:
        """The documents of optimizer step `step`, of all ranks: for each row, (shard name, document number) by doc_id.

        Reads and tokenizes every lane of the step's column, from the loaded state (or, with one rank, the record) if
        that is not past the step, else from the beginning. The cost of a step far ahead is that of training up to it in
        one process, divided by the grid's columns. For a step after the end of a finite pass the list is empty.

        reached   called now and then with the number of samples already passed before the step, and their total
        """
        rows = self._rows_of_step(step, reached)
        return pieces_of([padding(0), *rows]).documents(self.shard_names)

    def peek_batch(self, step: int, reached: Reached | None = None) -> Any:
        """Optimizer step `step` as one batch of all ranks' rows, in no rank's order; costs as much as `peek`."""
        whole, rows = Share(self.grid, 0, 1, 1), self._rows_of_step(step, reached)
        return self._iteration.builder.batch(whole, step, rows, np.zeros(0, np.int64), np.zeros((0, 3), np.int64))

    def _rows_of_step(self, step: int, reached: Reached | None) -> Sequence[Window]:
        checked(step, FromZero, "step")
        if isinstance(self.corpus, TokenCorpus):
            self.corpus.needs_table("peek")
        iteration, record = self._iteration, self._iteration.record
        is_known = all(change["was"].keys() == {"weights"} for change in self._changes)
        known_places = [(0, iteration.lane_starts)] if is_known else []
        if iteration.resumed_at is not None:
            known_places.append(iteration.resumed_at)
        if self.world_size == 1 and record.batch % self.grad_accum == 0:  # other ranks' lanes are not recorded
            known_places.append((record.batch // self.grad_accum, record.places))
        return rows_of_step(iteration.builder, self.grid, step, known_places, reached)

    def explain(self) -> Explanation:
        """How the stream is divided: plan, lanes, valid sizes, memory, the cost of restoring; print it."""
        window = None if self.is_raw else self.window
        mixture, counts = self._iteration.mixture, self._iteration.record.by_subset(self.subset_names)
        epochs = self.epochs_of({name: documents for name, (documents, _) in counts.items()})
        return explain(
            self._documents, self.share, self._iteration.unit, window, self.packing, mixture, epochs, self.altered
        )
