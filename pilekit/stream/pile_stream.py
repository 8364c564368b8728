"""`PileStream`: raw shards in, packed batches out, in one order on any number of ranks and workers.

No stage knows the number of ranks or workers. All documents stand in one shared sequence of units (unit_sequence.py),
which is divided among lanes. Each lane tokenizes and packs by itself (lane.py), and an optimizer step takes rows from
fixed lanes (lane_grid.py). Ranks, micro-batches and DataLoader workers only decide which process makes which part of a
step. So a step's content is the same for every valid world size, accumulation and number of workers, and a run can
resume with other numbers of these.

A `Record` (record.py) keeps the place of each lane after the batches that were handed out. Its changes travel with the
batches, so batches read ahead do not count. `stream.loader()` records each batch, with any number of workers. Iterating
the stream in one process records them too. With a stock DataLoader, `stream.advance(batch)` records them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from pilekit.artifacts.checked import checked
from pilekit.artifacts.settings import FromZero, of_setting, takes_settings
from pilekit.corpus.shuffle import Int64
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.display.progress import Reached, byte_progress
from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, counted, message_logger
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.stream.batch.batch import Batch, BatchWriter, checked_outputs
from pilekit.stream.batch.build_batches import BatchBuilder, Item, build_batches, rows_of_step
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.explanation import Explanation, explain, order_of
from pilekit.stream.finite_pass import Epoch, Passes, pass_part
from pilekit.stream.loader import StreamLoader, refuse_second_sharding
from pilekit.stream.order.lane_grid import COLUMNS, Grid, Share, batch_sizes, default_rows
from pilekit.stream.order.topology import rank_of_world
from pilekit.stream.pack.window import Layout, Place, Window
from pilekit.stream.read.document_selection import StreamDocuments, checked_filters
from pilekit.stream.read.lane_documents import LaneSource
from pilekit.stream.read.mixture import exact_mixture
from pilekit.stream.read.random_access import RandomAccess
from pilekit.stream.read.read_plan import choose_plan
from pilekit.stream.read.sequential import Sequential, default_grid
from pilekit.stream.read.token_files import TokenCorpus, TokenIndex, corpus_of
from pilekit.stream.record import HandedOut, Record, WorkerPart, remove_state, state_of
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
from pilekit.tokenize import Tokenizer, load_tokenizer

logger = message_logger(__name__)


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
        self.is_raw, epochs = settings.tokenizer is None, settings.epochs
        self.seq_len, self.packing, self.window = settings.seq_len, settings.packing, settings.window
        self.seed, outputs = settings.seed, checked_outputs(settings.outputs)
        self.rank, self.world_size = rank_of_world(settings.rank, settings.world_size, settings.num_replicas)
        self._lanes = None if settings.lanes == "auto" else settings.lanes
        sizes = (settings.batch_size, settings.grad_accum, settings.global_batch_size)
        self._sizes = (1, *sizes[1:]) if self.is_raw and sizes[0] is sizes[2] is None else sizes
        global_batch_size, accumulation = batch_sizes(self.world_size, *self._sizes)

        with of_setting("data"):
            self.corpus = corpus_of(settings.data, settings.manifest)
        self._tokenizer = None if self.is_raw else _tokenizer_with_eod(settings.tokenizer)
        self.subsets, self.repeats, shares = exact_mixture(settings, self.corpus.manifest)
        plan = self.corpus.plan(self._tokenizer, settings) if isinstance(self.corpus, TokenCorpus) else None
        with of_setting("dedup"):
            masks = None if settings.dedup is None else DropDuplicates(Path(settings.dedup))
        if plan is None:
            with byte_progress("indexing", self.corpus.size) if self.rank == 0 else nullcontext() as advance:
                plan = choose_plan(self.corpus, on_error=settings.on_error, advance=advance)
        self._selected = StreamDocuments(
            corpus=self.corpus,
            plan=plan,
            subsets=self.subsets,
            repeats=self.repeats,
            filters=checked_filters(settings.filters),
            dedup=masks,
            seed=settings.seed,
            shuffle=settings.shuffle,
            shuffle_block=settings.shuffle_block,
            on_error=settings.on_error,
            raw=self.is_raw,
            cache=None if settings.cache is None else FrameCache.at(settings.cache, settings.cache_bytes),
        )
        if shares is not None:
            self.repeats = self._selected.take_weights(shares, self._tokenizer, settings.append_eod)
        self.subset_names = tuple(self._selected.subset_ids)
        self._fingerprint = {**self._selected.fingerprint(), "tokenizer": None}
        layout, writer = Layout(1, "concat", self.window, True, self.seed), None  # without tokens a document is a row
        if self._tokenizer is not None:
            layout = Layout(self.seq_len, self.packing, self.window, settings.append_eod, self.seed)
            writer = self._packed_rows(self._tokenizer, layout, settings.objective, outputs)
        self._build = partial(
            BatchBuilder,
            layout=layout,
            tokenizer=self._tokenizer,
            writer=writer,
            shard_names=[shard.name for shard in self.corpus.shards],
            token_files=[index for index in plan.indexes if isinstance(index, TokenIndex)],
        )
        self._passes: Passes | None = None if epochs is None else Passes(epochs, settings.drop_last)
        if epochs is not None:
            rows, columns = 1, 1
        elif self._lanes is not None:
            rows, columns = self._lanes
        elif plan.name == "sequential":
            rows, columns = default_grid(len(self.corpus.shards), self.world_size)
        else:
            rows, columns = default_rows(global_batch_size, self.world_size, accumulation), COLUMNS
        grid = Grid(rows, columns, global_batch_size, plan.name, finite=epochs is not None)
        self._use_grid(grid, self._selected.default_unit(grid.lanes), accumulation)
        self._changes: list[dict[str, Any]] = []
        self._resume_from(Record(self._lane_starts(), 0, np.zeros((len(self.subset_names), 2), np.int64)))

    def __repr__(self) -> str:
        count = "" if self._selected.count is None else f"{counted(self._selected.count, 'document')}, "
        kept = "untokenized" if self._tokenizer is None else f"rows of {self.seq_len} tokens"
        return f"PileStream({self.corpus!r}, {count}batches of {self.batch_size}, {kept})"

    def _packed_rows(
        self, tokenizer: Tokenizer, layout: Layout, objective: Literal["clm", "mlm"], outputs: Sequence[str]
    ) -> BatchWriter:
        """The writer that turns rows into batches; its settings are added to the fingerprint."""
        assert tokenizer.eos_id is not None
        pad_id = tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id
        backend = f"{tokenizer.backend} {importlib.metadata.version(tokenizer.backend)}"
        special = {"treated_as": tokenizer.special_tokens, "eos_id": tokenizer.eos_id, "pad_id": pad_id}
        self._fingerprint |= {
            "tokenizer": tokenizer.fingerprint,
            "special_tokens": special,
            "backend": backend,
            "seq_len": layout.seq_len,
            "packing": layout.packing,
            "append_eod": layout.append_eod,
            "objective": objective,
        }
        masking = Masking.of(tokenizer) if objective == "mlm" else None
        return BatchWriter(layout.seq_len, outputs, pad_id, tokenizer.eos_id, masking)

    def _use_grid(self, grid: Grid, unit: int, grad_accum: int) -> None:
        """Use this grid: set this rank's share of it and the source of its lanes."""
        self.share, self._unit = grid.share(self.rank, self.world_size, grad_accum), unit
        end = None if self._passes is None else self._passes.borders(self._selected.positions(unit))[1]
        if grid.plan == "sequential":
            source: LaneSource = Sequential(self._selected, grid.lanes, end)
        else:
            source = RandomAccess(self._selected, grid.lanes, unit, end)
        self._builder = self._build(source, grid.per_visit)

    def _resume_from(self, record: Record, loaded: bool = False) -> None:
        """Resume from this record."""
        step, inside = divmod(record.batch, self.share.grad_accum)
        # The places of all lanes before a step; `peek` can count from there.
        self._known = None if inside else (step, record.places.copy())
        self._handed_out = HandedOut(record, None if self._passes is None else self._lane_starts(), loaded)
        self._part: WorkerPart | None = None  # in a DataLoader worker that iterates: its part of the batches
        self._begun = False  # whether this DataLoader worker has iterated
        self._loaded_part: tuple[int, int, int] | None = None  # the `_part` in the state that was loaded

    def _lane_starts(self) -> Int64:
        """The places at which all lanes begin, int64 [L, 3]."""
        places = self._selected.first(self.share.grid.lanes)
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
        return self._recorded_batches() if get_worker_info() is None else self._unrecorded_batches()

    def _recorded_batches(self) -> Generator[Item, None, None]:
        handed_out = self._begin()
        for batch in self._remaining_batches(WorkerPart()):
            handed_out.iterated(state_of(batch))
            yield batch
            if self._handed_out is not handed_out:
                raise PilekitError(
                    "this iterator's batches no longer count, because a state was loaded, an epoch set or another "
                    "iteration begun since; resume with a new iter(stream)"
                )
        self._pass_ended()

    def _unrecorded_batches(self) -> Generator[Item, None, None]:
        """The batches after the record: all of them, or in a DataLoader worker that worker's batches."""
        worker = get_worker_info()
        if worker is None:
            return self._remaining_batches(WorkerPart())
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
        for batch in self._remaining_batches(part) if part.worker < part.workers else ():
            self._handed_out.record.take(state_of(batch))
            self._part = part = part._replace(made=part.made + 1)
            yield batch

    def _remaining_batches(self, part: WorkerPart) -> Generator[Item, None, None]:
        """The remaining batches of this part; nothing is recorded."""
        record = self._handed_out.record
        if self._passes is None:
            return build_batches(self._builder, self.share, record.places, part.numbers(record.batch))
        begin, place = (Place(*places[0].tolist()) for places in (self._lane_starts(), record.places))
        # A state that was just loaded may be at the end: then nothing is left. Otherwise an ended pass begins again.
        return pass_part(
            self._builder, self.share, self._passes, begin, place, record.batch, part, again=not self._handed_out.loaded
        )

    def _begin(self) -> HandedOut:
        """Begin an iteration after the last batch that the previous iteration handed out."""
        self._handed_out = self._handed_out.next_iteration()
        return self._handed_out

    def _pass_ended(self) -> None:
        """Note that an iteration has given its last batch: a finite pass begins again."""
        if self._passes is not None:
            self._begin_pass(self._passes)

    def _begin_pass(self, passes: Passes) -> None:
        self._passes = passes
        self._use_grid(self.grid, self._unit, self.grad_accum)
        self._resume_from(replace(self._handed_out.record, places=self._lane_starts(), batch=0))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next finite pass, as a DistributedSampler's `set_epoch` does.

        The pass starts at its beginning, or resumes if a state of that epoch was just loaded. An endless stream moves
        through its epochs by itself, each in another order, so `set_epoch` does nothing.
        """
        checked(epoch, Epoch, "epoch")
        if self._passes is not None and not (self._handed_out.loaded and epoch == self._passes.epoch):
            self._begin_pass(replace(self._passes, epoch=epoch))

    def advance(self, batch: Any) -> None:
        """Record that `batch` was handed out, and remove its `stream_state`: `state_dict` now resumes after it.

        With a stock DataLoader, call it for every batch, in order. `loader()` calls it by itself. A loop over the
        stream itself may call it to count a batch only from this point.
        """
        self._handed_out.advance(state_of(batch))
        remove_state(batch)

    # State

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch, as a dict of JSON types; about 40 bytes a lane, at any point of the stream.

        It holds all lanes of the grid, but only the lanes of this rank are current: `merge_state_dicts` joins the
        states of all ranks. In a DataLoader's worker that has begun, it is the state of that worker, for that worker.
        """
        if get_worker_info() is not None and self._part is None:
            raise PilekitError(
                "a worker knows only its own part of the stream's state; use stream.loader(), or a DataLoader that "
                "leaves the state to stream.advance(batch) in the main process"
            )
        per_epoch = self._selected.per_epoch(self._unit)
        plan = StatePlan(grid=self.grid, passes=self._passes, unit=self._unit, window=self.window, per_epoch=per_epoch)
        record = self._handed_out.record
        step, batch = divmod(record.batch, self.grad_accum)
        return StreamState(
            fingerprint=self._fingerprint,
            plan=plan,
            step=step,
            batch=batch,
            rank=self.rank,
            worker=self._part,
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

        PilekitError names the field if the state has other shards, tokenizer, seq_len, packing, seed, plan and so on.
        If its global_batch_size and grid do not fit this world size, the message lists valid numbers.
        """
        in_worker = get_worker_info() is not None
        loaded, counts = loaded_state(state, self.rank, self.world_size, in_worker=in_worker)
        was = changed_fields(loaded, self._fingerprint, strict)
        wanted: dict[str, Any] = {"plan": self.grid.plan, "window": self.window, "epochs": None}
        if self._passes is not None:
            wanted |= {"epochs": self._passes.epochs, "drop_last": self._passes.drop_last}
        if self._lanes is not None:
            wanted |= dict(zip(("rows", "columns"), self._lanes, strict=True))
        batch_size, grad_accum, whole = self._sizes
        if whole is not None:
            wanted["global_batch_size"] = whole
        grid = grid_for(loaded, {**wanted, "finite": self.grid.finite})
        accumulation = accumulation_for(loaded, grid, self.world_size, batch_size, grad_accum)
        grid.share(self.rank, self.world_size, accumulation)  # refuse before anything changes
        self._passes = loaded.plan.passes
        self._use_grid(grid, loaded.plan.unit, accumulation)
        places, self._changes = loaded.places(), list(loaded.changes)
        if was:
            places = self._selected.moved(places, loaded.plan.per_epoch, self._unit)
            self._changes.append({"until_step": loaded.step, "was": was})
        counted = np.zeros((len(self.subset_names), 2), np.int64)
        for name, pair in counts.subsets.items():
            counted[self._selected.ids_of([name])] += pair
        done = loaded.step * accumulation + loaded.batch
        self._resume_from(Record(places, done, counted, counts.rows, counts.skipped), loaded=True)
        self._loaded_part = loaded.worker

    # Looking

    @property
    def order(self) -> str:
        """The order of the documents, as a line for people."""
        return order_of(self._selected, self._unit)

    def stats(self) -> dict[str, Any]:
        """Counts of all batches that this rank was handed since the run began, resumed parts included.

        rows, documents (that began), tokens (EOD counted), fill (tokens / room in the rows), padding (1 - fill),
        skipped (bad lines: of the whole corpus if it is indexed), and `subsets`: {name: {"documents", "tokens"}}. After
        a resume on another world size, rank 0 has the counts of all earlier ranks.
        """
        stats, skipped = self._handed_out.record.stats(self.subset_names, self.seq_len), self._selected.skipped
        return stats if skipped is None else {**stats, "skipped": skipped}

    def peek(self, step: int, reached: Reached | None = None) -> list[list[tuple[str, int]]]:
        """The documents of optimizer step `step`, of all ranks: for each row, (shard name, document number) by doc_id.

        Reads and tokenizes every lane of the step's column, from the loaded state (or, with one rank, the record) if
        that is not past the step, else from the beginning. The cost of a step far ahead is that of training up to it in
        one process, divided by the grid's columns. For a step after the end of a finite pass the list is empty.

        reached   called now and then with the number of samples already passed before the step, and their total
        """
        return self._builder.named(self._rows_of_step(step, reached))

    def peek_batch(self, step: int, reached: Reached | None = None) -> Any:
        """Optimizer step `step` as one batch of all ranks' rows, in no rank's order; costs as much as `peek`."""
        whole, rows = Share(self.grid, 0, 1, 1), self._rows_of_step(step, reached)
        return self._builder.batch(whole, step, rows, np.zeros(0, np.int64), np.zeros((0, 3), np.int64))

    def _rows_of_step(self, step: int, reached: Reached | None) -> list[Window]:
        checked(step, FromZero, "step")
        if isinstance(self.corpus, TokenCorpus):
            self.corpus.needs_table("peek")
        known, record = [] if self._changes else [(0, self._lane_starts())], self._handed_out.record
        if self._known is not None:
            known.append(self._known)
        if self.world_size == 1 and record.batch % self.grad_accum == 0:  # other ranks' lanes are not recorded
            known.append((record.batch // self.grad_accum, record.places))
        return rows_of_step(self._builder, self.grid, step, known, reached)

    def explain(self) -> Explanation:
        """How the stream is divided: plan, lanes, valid sizes, memory, the cost of restoring; print it."""
        window = None if self.is_raw else self.window
        return explain(self._selected, self.share, self._unit, window, self.packing)


def _tokenizer_with_eod(tokenizer: object) -> Tokenizer:
    """Load the tokenizer from a path or an object; PilekitError if it has no end-of-document token."""
    with of_setting("tokenizer"):
        loaded = load_tokenizer(tokenizer)
        if loaded.eos_id is None:
            raise PilekitError(
                f"the tokenizer {loaded.path} has no end-of-document token, which must follow every document; name it "
                'as "eos_token" in a tokenizer_config.json beside it'
            )
    return loaded
