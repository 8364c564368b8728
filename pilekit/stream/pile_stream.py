"""`PileStream`: raw shards in, packed batches out, in one order on any number of ranks and workers.

No stage of the way knows the topology: documents stand in one shared sequence of units (unit_sequence.py), which is
dealt to lanes; each lane tokenizes and packs by itself (lane.py); and an optimizer step takes rows from fixed lanes
(lane_grid.py). Ranks, micro-batches and DataLoader workers only decide who makes which part of a step. So a step's
content is the same for every valid world size, accumulation and number of workers, and a run can be resumed on another.

What a stream is at is a `Record` (record.py): where each lane stands after the batches that were handed out. It comes
with the batches, so reading ahead does not count. In one process, iterating the stream records each batch by itself;
`stream.loader()` does for any number of workers, and with a stock DataLoader `stream.advance(batch)` does.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import get_worker_info

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError, visible
from pilekit.pipeline import Stage
from pilekit.progress import Reached
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.shards.read.reader import OnError
from pilekit.stream import state as states
from pilekit.stream.arguments import (
    MOST_TOKENS_IN_ROW,
    check_flag,
    check_number,
    check_one_of,
    check_path,
    corpus_of,
    eos_id_of,
    masking_of,
    plan_of,
    subsets_of,
    tokenizer_of,
)
from pilekit.stream.batch.batch import DEFAULT_OUTPUTS, BatchWriter, checked_outputs
from pilekit.stream.batch.build_batches import PackedBatches
from pilekit.stream.batch.peek import before_step, given_to_step
from pilekit.stream.batch.raw_documents import RawBatches
from pilekit.stream.explanation import Explanation, explain
from pilekit.stream.finite_pass import Passes, check_epochs
from pilekit.stream.loader import StreamLoader
from pilekit.stream.order.lane_grid import Grid, Share, batch_sizes, given_lanes
from pilekit.stream.order.repeats import exact_repeats
from pilekit.stream.order.shuffle import Int64
from pilekit.stream.order.topology import rank_of_world, refuse_differing_backends
from pilekit.stream.pack.tokenized_lane import Encoding
from pilekit.stream.pack.window import PACKINGS, Packing
from pilekit.stream.read.lane_sources import OTHER, DocumentSelection, checked_filters
from pilekit.stream.record import Record
from pilekit.stream.recorded_stream import RecordedStream
from pilekit.stream.resume import accumulation_for, changed_fields, grid_for, loaded_state
from pilekit.tokenize import Tokenizer

_WINDOW = 256


class PileStream(RecordedStream):
    """An iterable dataset of packed batches, straight from raw shards, without end or, with `epochs`, of finite passes.

    data               a path, a glob, a URL, a list of them, or a `Corpus`. Val and test shards that lie among others
                       are left out; only a `Corpus` is taken as it is. A warning says which of the two happens
    tokenizer          a path (what `load_tokenizer` takes), or a `Tokenizer`; it must have an end-of-document token.
                       None: items are documents as they are; what concerns tokens, rows and windows means nothing then
    seq_len            tokens in a row
    batch_size         rows in a batch: what this rank gets at a time
    grad_accum         batches that make an optimizer step on this rank
    global_batch_size  rows in an optimizer step over all ranks: batch_size x grad_accum x world_size, if not given; a
                       run's is kept in its state, and on resuming grad_accum follows from it (or batch_size, if
                       grad_accum is given)
    subsets            only documents of these subsets, by any of their names; None: all
    repeats            how often documents of a subset are used per epoch, {"ArXiv": 2.5}; others once, 0 leaves it out.
                       Released train shards of the Pile contain its up-sampling already: this multiplies it
    packing            "best_fit": no document is cut that fits a row; "concat": documents one after another, cut at the
                       row's edge; "none": one document a row
    window             documents that are packed together in a lane (best_fit, none)
    append_eod         whether each document is followed by the end-of-document token
    seed               of the order and of whatever else is random
    shuffle            False: units and documents in the order of the corpus
    dedup              folder of a finished `pilekit dedup`: what it removed is left out
    filters            document stages, each document's fate depending on itself alone
    objective          "clm", or "mlm": 15 % of tokens masked, the same on any topology; needs a mask token
    outputs            what a batch holds, see `Batch`; `stream_state` is always there
    lanes              (rows, columns) of the grid, or "auto"; kept in the state
    epochs             None: without end. Else an iteration goes through the corpus so many times and ends, each time in
                       another order, which `set_epoch` chooses: for evaluation. Every rank gets the same number of
                       batches; what a last step lacks is rows without documents
    drop_last          with `epochs`: leave that last step out
    rank, world_size   of this process, from 0; None: of torch.distributed, else $RANK and $WORLD_SIZE, else 0 of 1.
                       `num_replicas` is another name for world_size
    on_error           "raise": a bad line is a PilekitError; "skip": it is left out and counted
    cache              a local folder in which frames of remote shards are kept, for any number of processes and runs
    cache_bytes        what that takes at most; frames used longest ago are removed

    An item is a `Batch`, a dict of tensors [batch_size, seq_len] that also names its documents. **With a DataLoader,
    pass batch_size=None**: batches are made here. `stream.loader(num_workers=n)` is such a DataLoader that also keeps
    the state; with a stock one, call `stream.advance(batch)` for each batch trained on.

    With tokenizer=None an item is a `StoredDocument` (text, meta, subset, number, shard): batch_size is 1 then unless
    given; else a list of batch_size of them. Of Parquet shards, `meta` has the label alone. A finite pass ends with its
    first documents once more where ranks would not be equally long, as DistributedSampler's does.

    From a URL, indexed shards are read by ranges, whole frames at a time: a lane's window is a request for each unit in
    it. A request that fails is made again, three times; a web server may be silent for 30 seconds. Frames of 1 MiB are
    fetched about 1.7 times in an epoch of a large corpus, unless a `cache` can hold it. Shards that are read through,
    not at random, are never cached: that is an error, and Parquet a warning.

    PilekitError for wrong arguments, for a selection without documents, and for a world size, accumulation or batch
    that does not fit the grid, with those that do.
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path] | Corpus,
        *,
        tokenizer: str | Path | Tokenizer | None,
        seq_len: int = 2048,
        batch_size: int | None = None,
        grad_accum: int | None = None,
        global_batch_size: int | None = None,
        subsets: Sequence[str] | None = None,
        repeats: Mapping[str, float] | None = None,
        packing: Packing = "best_fit",
        window: int = _WINDOW,
        append_eod: bool = True,
        seed: int = 0,
        shuffle: bool = True,
        dedup: str | Path | None = None,
        filters: Sequence[Stage] = (),
        objective: Literal["clm", "mlm"] = "clm",
        outputs: Sequence[str] = DEFAULT_OUTPUTS,
        lanes: tuple[int, int] | Literal["auto"] = "auto",
        epochs: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        num_replicas: int | None = None,
        on_error: OnError = "raise",
        cache: str | Path | None = None,
        cache_bytes: int = 32 << 30,
    ) -> None:
        check_one_of("packing", packing, PACKINGS)
        check_one_of("objective", objective, ("clm", "mlm"))
        check_one_of("on_error", on_error, ("raise", "skip"))
        check_number("seq_len", seq_len, most=MOST_TOKENS_IN_ROW)
        check_number("window", window)
        check_number("seed", seed, None)
        check_number("cache_bytes", cache_bytes)
        for name, flag in (("append_eod", append_eod), ("shuffle", shuffle), ("drop_last", drop_last)):
            check_flag(name, flag)
        for name, path in (("dedup", dedup), ("cache", cache)):
            check_path(name, path)
        if not isinstance(outputs, Sequence):
            raise PilekitError(f"outputs is a list of names, not {visible(repr(outputs), 80)}")
        outputs = checked_outputs(outputs)
        check_epochs(epochs, lanes)
        self._given_lanes = given_lanes(lanes)
        if tokenizer is None:
            if objective == "mlm":
                raise PilekitError('objective="mlm" masks tokens, tokenizer=None asks for documents; give a tokenizer')
            if batch_size is None and global_batch_size is None:
                batch_size = 1
        self._given_sizes = (batch_size, grad_accum, global_batch_size)
        self.rank, self.world_size = rank_of_world(rank, world_size, num_replicas)
        batch, accumulation = batch_sizes(self.world_size, batch_size, grad_accum, global_batch_size)

        self.corpus = corpus_of(data)
        self._tokenizer = tokenizer_of(tokenizer)
        self.is_raw = self._tokenizer is None
        self.subsets = subsets_of(subsets, self.corpus)
        self.repeats = exact_repeats(repeats, self.subsets, self.corpus.manifest)
        self.seq_len, self.packing, self.window, self.seed = seq_len, packing, window, seed
        self._selected = DocumentSelection(
            corpus=self.corpus,
            plan=plan_of(self.corpus, on_error, tell=self.rank == 0),
            subsets=self.subsets,
            repeats=self.repeats,
            filters=checked_filters(filters),
            dedup=None if dedup is None else Path(dedup),
            seed=seed,
            shuffle=shuffle,
            on_error=on_error,
            cache=None if cache is None else FrameCache.at(cache, cache_bytes),
        )
        self.subset_names = self._selected.subset_names()
        ids = {name: index for index, name in enumerate(self.subset_names)}
        self._subset_ids = ids
        names = tuple(shard.name for shard in self.corpus.shards)
        if self._tokenizer is None:
            self._builder = RawBatches(names, self.corpus.manifest.text_field, ids, ids[OTHER])
            self._fingerprint = {**self._selected.fingerprint(), "tokenizer": None}
        else:
            eos_id = eos_id_of(self._tokenizer)
            pad_id = eos_id if self._tokenizer.pad_id is None else self._tokenizer.pad_id
            masking = masking_of(self._tokenizer) if objective == "mlm" else None
            encoding = Encoding(seq_len, packing, window, append_eod, self._tokenizer, seed, ids, ids[OTHER], names)
            writer = BatchWriter(seq_len, outputs, pad_id, eos_id, masking)
            self._builder = PackedBatches(encoding, writer, len(ids))
            backend = f"{self._tokenizer.backend} {importlib.metadata.version(self._tokenizer.backend)}"
            if self.world_size > 1:
                refuse_differing_backends(self._tokenizer, backend, self.rank)
            self._fingerprint = {
                **self._selected.fingerprint(),
                "tokenizer": self._tokenizer.fingerprint,
                "special_tokens": {"treated_as": self._tokenizer.special_tokens, "eos_id": eos_id, "pad_id": pad_id},
                "backend": backend,
                "seq_len": seq_len,
                "packing": packing,
                "append_eod": append_eod,
                "objective": objective,
            }
        self._passes = None if epochs is None else Passes(epochs, drop_last)
        rows, columns = (1, 1) if epochs else self._given_lanes or self._selected.default_lanes(batch, self.world_size)
        grid = Grid(rows, columns, batch, self._selected.plan.name, finite=epochs is not None)
        self._settle(grid, self._selected.default_unit(grid.lanes), accumulation)
        none = np.zeros(len(ids), np.int64)
        self._changes: list[dict[str, Any]] = []
        self._start(Record(self._first(), 0, none, none.copy()))

    def _settle(self, grid: Grid, unit: int, grad_accum: int) -> None:
        """Take this grid: what follows from it, and whether it can serve this rank."""
        share = grid.share(self.rank, self.world_size, grad_accum)
        self.share, self._unit = share, unit
        end = None if self._passes is None else self._passes.borders(self._selected.positions(unit))[1]
        self._source = self._selected.source(grid.lanes, unit, end, records=self._tokenizer is None)

    def _first(self) -> Int64:
        """Where all lanes begin, int64 [L, 3]."""
        places = self._selected.first(self.grid.lanes)
        if self._passes is not None:
            places[0, 0] = self._passes.borders(self._selected.positions(self._unit))[0]
        return places

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; PilekitError for a stream of documents, which has none."""
        if self._tokenizer is None:
            raise PilekitError("a stream with tokenizer=None gives documents and has no tokenizer")
        return self._tokenizer

    def _begin_pass(self, passes: Passes) -> None:
        record, self._passes = self._current(), passes
        self._settle(self.grid, self._unit, self.grad_accum)
        self._start(Record(self._first(), 0, record.documents, record.tokens, record.rows, record.skipped))

    def loader(self, num_workers: int = 0, **options: Any) -> StreamLoader:
        """A loader of this stream's batches that keeps its state; see `StreamLoader` for the options.

        TypeError for an option that it does not have.
        """
        known = StreamLoader.__init__.__kwdefaults__ or {}
        if unknown := [name for name in options if name not in known]:
            raise TypeError(
                f"stream.loader() has no option {unknown[0]}; it takes num_workers, {', '.join(known)}, and starts its "
                "workers anew for each iteration"
            )
        return StreamLoader(self, num_workers, **options)

    def set_epoch(self, epoch: int) -> None:
        """Let the next finite pass be that of `epoch`, from its beginning, as a DistributedSampler's `set_epoch` does.

        A pass of that epoch which a state just loaded lies in goes on. A stream without end goes through its epochs by
        itself, each in another order: nothing changes.
        """
        if type(epoch) is not int or epoch < 0:
            raise PilekitError(f"epoch is a whole number from 0 on, not {visible(repr(epoch), 80)}")
        if self._passes is not None and not (self._loaded and epoch == self._passes.epoch):
            self._begin_pass(replace(self._passes, epoch=epoch))

    def _plan(self) -> dict[str, Any]:
        grid = self.grid
        return {
            **({} if self._passes is None else asdict(self._passes)),
            "name": grid.plan,
            "rows": grid.rows,
            "columns": grid.columns,
            "global_batch_size": grid.global_batch_size,
            "unit": self._unit,
            "window": self.window,
            "per_epoch": self._selected.per_epoch(self._unit),
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins, as a dict of JSON types, some 40 bytes a lane wherever the stream stands.

        Of all lanes of the grid, of which those of this rank are current: `merge_state_dicts` joins the states of all.
        In a DataLoader's worker that has begun: the worker's own state, which goes on in the same worker only.
        """
        if get_worker_info() is not None and self._part is None:
            raise PilekitError(
                "a worker knows only its own part of the stream's state; use stream.loader(), or a DataLoader that "
                "leaves the state to stream.advance(batch) in the main process"
            )
        state = states.to_json(
            self._current(),
            self.share,
            self.subset_names,
            fingerprint=copy.deepcopy(self._fingerprint),
            plan=self._plan(),
            changes=self._changes,
        )
        return state if self._part is None else {**state, "worker": self._part.to_json()}

    @staticmethod
    def merge_state_dicts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One state from those of all ranks, taken after the same batch; it loads on any valid world size.

        PilekitError if a rank is missing or there twice, or if they are not of one moment of one run.
        """
        return states.merge(parts)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Resume exactly behind the last batch that was handed out when `state` was taken.

        state    of this rank of as many ranks, a merged one, or a list with those of all ranks. World size, workers
                 and, between optimizer steps, accumulation may be others
        strict   False: `subsets` and `repeats` may be others too, from here on; what they were until when stays in the
                 state. Documents of open windows may then be used again

        PilekitError names the field if the state is of other shards, tokenizer, seq_len, packing, seed, plan and so on;
        and the valid numbers if the state's global_batch_size and grid do not fit this world size.
        """
        part = None
        if get_worker_info() is not None and isinstance(state, Mapping):
            part = state.get("worker")
            state = {name: value for name, value in state.items() if name != "worker"}
        loaded, counts = loaded_state(state, self.rank, self.world_size)
        was = changed_fields(loaded, self._fingerprint, strict)
        wanted: dict[str, Any] = {"name": self.grid.plan, "window": self.window, "epochs": None}
        if self._passes is not None:
            wanted |= {"epochs": self._passes.epochs, "drop_last": self._passes.drop_last}
        if self._given_lanes is not None:
            wanted |= dict(zip(("rows", "columns"), self._given_lanes, strict=True))
        batch_size, grad_accum, whole = self._given_sizes
        if whole is not None:
            wanted["global_batch_size"] = whole
        grid = grid_for(loaded, wanted)
        accumulation = accumulation_for(loaded, grid, self.world_size, batch_size, grad_accum)
        grid.share(self.rank, self.world_size, accumulation)  # whatever is refused is refused before anything changes
        if self._passes is not None:
            self._passes = replace(self._passes, epoch=loaded.plan["epoch"])
        self._settle(grid, loaded.plan["unit"], accumulation)
        places, self._changes = loaded.places, list(loaded.changes)
        if was:
            places = self._selected.moved(places, loaded.plan["per_epoch"], self._unit)
            self._changes.append({"until_step": loaded.step, "was": was})
        done = loaded.step * accumulation + loaded.batch
        self._start(Record.of(places.copy(), done, counts, self._subset_ids, self._subset_ids[OTHER]))
        self._loaded_part = part
        self._loaded = True

    def stats(self) -> dict[str, Any]:
        """What this rank was handed so far, by the record: since the run's start, those of earlier parts of it counted.

        rows, documents (that began), tokens (EOD counted), fill (tokens / room in the rows), skipped (bad lines: of the
        whole corpus where indexes tell), and `subsets`: {name: {"documents", "tokens"}}. After a state of all ranks was
        loaded on another world size, rank 0 has what was before.
        """
        stats, known = self._current().stats(self.subset_names, self.seq_len), self._selected.selection
        return stats if known is None else {**stats, "skipped": known.skipped}

    def peek(self, step: int, reached: Reached | None = None) -> list[list[tuple[str, int]]]:
        """The documents of optimizer step `step`, of all ranks: for each row, (shard name, document number) by doc_id.

        Reads and tokenizes, for every lane of the step's column, from what is recorded (or was loaded) where that lies
        at or before the step, else from the beginning: a step far ahead costs about what getting there costs all ranks
        in one process, divided by the grid's columns, and no step is too far. A finite pass has nothing behind its last
        step: [].

        reached   called now and then with how many samples before the step were passed, and how many there are
        """
        return self._builder.named(self._given_to(step, reached))

    def peek_batch(self, step: int, reached: Reached | None = None) -> Any:
        """The same, as one batch of the whole step, in no order that a rank would see; costs as much."""
        everything = np.zeros(0, np.int64), np.zeros((0, 3), np.int64)
        return self._builder.batch(Share(self.grid, 0, 1, 1), step, self._given_to(step, reached), *everything)

    def _given_to(self, step: int, reached: Reached | None) -> list[Any]:
        check_number("step", step, 0)
        known = [] if self._changes else [(0, self._first())]
        known += [] if self._known is None else [self._known]
        begun = before_step(self.share, step, known, self._current())
        return given_to_step(self._source, self._builder, self.grid, step, begun, reached)

    def explain(self) -> Explanation:
        """How this stream is dealt out: plan, lanes, what fits them, memory, the cost of restoring; print it."""
        window = None if self.is_raw else self.window
        return explain(self._selected, self.share, self._unit, window, self.packing)
