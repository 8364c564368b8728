"""`PileStream`: raw shards in, packed batches out, in one process.

    read (a thread decodes ahead) -> Tokenize -> Pack

One pass goes through the shards in their order and ends. The stream's state is the `Place` after the last batch that
was handed out, whatever was read ahead; resuming reads from that place's document on. Torch's iteration protocol
applies: `iter()` begins a new pass, only the first one after `load_state_dict` begins where the state says. So a state
taken on the last batch leaves nothing to do, one taken after the end leaves a whole pass.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from pilekit.corpus import Corpus, resolve_subsets
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.shards import read
from pilekit.shards.reading import OnError
from pilekit.stream.batch import Batch
from pilekit.stream.pack import Pack
from pilekit.stream.state import STATE_VERSION, Place, fingerprint, place_from_state
from pilekit.tokenize import Tokenize, Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

PACKINGS = ("concat",)


class PileStream(IterableDataset[Batch]):
    """An iterable dataset of packed batches, straight from raw shards.

    data         a path, a glob, a URL, a list of them, or a `Corpus`. Val and test shards that lie among others are
                 left out; only a `Corpus` is taken as it is. A warning says which of the two happens
    tokenizer    a path (what `load_tokenizer` takes), or a `Tokenizer`; it must have an end-of-document token
    seq_len      tokens in a row
    batch_size   rows in a batch; the last batch of a pass has fewer where no more are left, so no token is lost
    subsets      only documents of these subsets, by any of their names; None: all
    packing      "concat": documents one after another, cut at the row's edge
    seed         recorded in the state; a pass in file order has nothing random
    on_error     "raise": a bad line is a PilekitError; "skip": it is left out, and each shard's are told in a warning

    An item is a `Batch`: a dict of `input_ids`, `labels`, `doc_ids`, `position_ids`, `subset_ids`, each a LongTensor
    [batch_size, seq_len], which also names its documents: `batch.documents()`.

    **With a DataLoader, pass batch_size=None**: `DataLoader(stream, batch_size=None, num_workers=n)`. Batches are made
    here; a DataLoader that would batch them again, as it does by default, is refused with a PilekitError.
    With n > 1 worker 0 makes all batches and the others end at once. With n > 0 the batches are made in another
    process, some ahead, and this object does not see them go by: call `stream.advance(batch)` for each one trained on.

    PilekitError for wrong arguments, a selection without documents, and in a job of more than one process.
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path] | Corpus,
        *,
        tokenizer: str | Path | Tokenizer,
        seq_len: int = 2048,
        batch_size: int = 8,
        subsets: Sequence[str] | None = None,
        packing: str = "concat",
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        if packing not in PACKINGS:
            raise PilekitError(f'packing={packing!r} is not available: only packing="concat" exists so far')
        _refuse_several_processes()
        self.corpus = _corpus(data)
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
        eos_id = self.tokenizer.eos_id
        if eos_id is None:
            raise PilekitError(
                f"the tokenizer {visible(str(self.tokenizer.path))} has no end-of-document token, which must follow "
                'every document; name it as "eos_token" in a tokenizer_config.json beside it'
            )
        self.subsets = None if subsets is None else resolve_subsets(subsets, manifest=self.corpus.manifest)
        if self.subsets == ():
            raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.on_error = on_error
        pad_id = eos_id if self.tokenizer.pad_id is None else self.tokenizer.pad_id
        self._pack = Pack(
            seq_len,
            eos_id,
            batch_size=batch_size,
            pad_id=pad_id,
            subset_names=tuple(subset.name for subset in self.corpus.manifest.subsets),
        )
        self._fingerprint = fingerprint(
            self.corpus,
            self.tokenizer,
            pad_id=pad_id,
            seq_len=seq_len,
            packing=packing,
            subsets=self.subsets,
            seed=seed,
        )
        self._place = Place(self.corpus.shards[0].name)
        self._loaded: Place | None = None

    @property
    def subset_names(self) -> tuple[str, ...]:
        """What `subset_ids` index: the manifest's names in its order, then other labels as their documents come.

        It only grows, and what it has grown by is part of the state.
        """
        return (*self._pack.subset_names, *self._place.new_subsets)

    def __iter__(self) -> Iterator[Batch]:
        """Begin a new pass; after `load_state_dict`, the rest of that pass. One iterator of a stream at a time."""
        _refuse_several_processes()
        self._place = self._beginning() if self._loaded is None else self._loaded
        self._loaded = None
        return self._batches(self._place)

    def _beginning(self) -> Place:
        return Place(self.corpus.shards[0].name, new_subsets=self._place.new_subsets)

    def _batches(self, place: Place) -> Generator[Batch, None, None]:
        worker = get_worker_info()
        if worker is not None and worker.id > 0:
            return
        empty = place == self._beginning()
        with closing(self._documents(place)) as documents:
            for batch in self._pack(Tokenize(self.tokenizer)(documents), place):
                empty = False
                self.advance(batch)
                yield batch
        if empty:
            raise PilekitError(self._nothing_selected())
        self._place = self._beginning()

    def _documents(self, place: Place) -> Generator[DocumentBatch, None, None]:
        names = [shard.name for shard in self.corpus.shards]
        first = names.index(place.shard)
        for shard in self.corpus.shards[first:]:
            start = place.document if shard.name == place.shard else 0
            with read(shard, self.subsets, self.on_error, manifest=self.corpus.manifest, start=start) as documents:
                yield from documents
                if bad := documents.skipped.count:
                    example = documents.skipped.examples[0]
                    logger.warning("%s bad line%s left out, the first: %s", f"{bad:,}", "s" * (bad > 1), example)

    def _nothing_selected(self) -> str:
        where = visible(str(self.corpus.root))
        if self.subsets is None:
            return f"no documents in the {len(self.corpus.shards)} shards of {where}; give a corpus that has some"
        return (
            f"no documents of {visible(', '.join(self.subsets))} in the {len(self.corpus.shards)} shards of {where}; "
            "`pilekit stats` shows which subsets there are"
        )

    def advance(self, batch: Batch) -> None:
        """Record that `batch` was handed out: `state_dict` is now the place after it.

        Iterating the stream itself does this; only with a DataLoader that has workers must the training loop do it.
        """
        if not isinstance(batch, Batch):
            raise PilekitError("advance() needs the batch as the loader gave it; call it before converting the batch")
        state = batch.stream_state
        self._place = Place(state["shard"], state["document"], state["token"], tuple(state["new_subsets"]))
        self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """Where the next row begins, as a small dict of JSON types.

        `shard`, `document`, `token`: after `token` tokens, EOD counted, of the shard's first selected document numbered
        `document` or higher. `new_subsets`: labels met that the manifest lacks. `fingerprint`: what the state fits.
        """
        return {"version": STATE_VERSION, **self._place.to_json(), "fingerprint": copy.deepcopy(self._fingerprint)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter()` yield exactly the rows that were left when `state` was taken.

        `batch_size` may have changed. PilekitError names the field if the state is of other shards (names and sizes),
        another tokenizer or version of its backend, other `seq_len`, `packing`, `subsets` or `seed`.
        """
        place = place_from_state(state, self._fingerprint)
        if place.shard not in {shard.name for shard in self.corpus.shards}:
            raise PilekitError(f"the stream's state names the shard {visible(place.shard)}, which is not in its corpus")
        self._place = self._loaded = place


def _corpus(data: str | Path | Sequence[str | Path] | Corpus) -> Corpus:
    if not isinstance(data, Corpus):
        return Corpus(data).without_held_out()
    if data.held_out:
        names = ", ".join(visible(shard.name) for shard in data.held_out)
        logger.warning("streams held-out shards too: %s; give corpus.without_held_out() to leave them out", names)
    return data


def _refuse_several_processes() -> None:
    launched = os.environ.get("WORLD_SIZE", "")
    world_size = int(launched) if launched.isdecimal() else 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world_size = torch.distributed.get_world_size()
    if world_size > 1:
        raise PilekitError(
            f"this job has {world_size} processes, and PileStream does not divide a corpus among processes yet: each "
            "would train on the same batches; run one process"
        )
