"""`Pack`: the stage from token batches to batches of packed rows, for chains without a `PileStream`.

It is one `Lane` over the token batches: rows go into batches in the windows' order, and a batch is handed on the moment
it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.errors import PilekitError, visible
from pilekit.stream.batch.batch import DEFAULT_OUTPUTS, Batch, BatchWriter, checked_outputs
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.order.shuffle import mix
from pilekit.stream.pack.lane import Lane, Place
from pilekit.stream.pack.rows import Int64
from pilekit.stream.pack.window import PACKINGS, Layout, Packing, TokenizedDocuments
from pilekit.tokenize import TokenBatch


@dataclass(frozen=True)
class Pack:
    """Pack documents, each followed by `eos_id`, into rows.

    seq_len        tokens in a row
    eos_id         the token that ends each document; a document without tokens is this token alone
    packing        "best_fit": windows of documents, no document cut that fits in a row; "concat": one document after
                   another, cut at the row's edge; "none": one document a row
    window         documents that are packed together, by best_fit and none
    batch_size     rows in a batch; the last batch has fewer where there are no more
    pad_id         fills what documents leave free; `eos_id` by default
    append_eod     False: documents stand side by side without an EOD, and those without tokens are left out
    outputs        what a batch holds, see `Batch`
    masking        for masked-language modelling: which tokens can be chosen, and what replaces them
    subset_names   subset ids count through these names; other labels get the next ids, in the order in which they come
    seed           of the rows' order and of the masks

    PilekitError for arguments that make no sense, and for more than `MAX_SUBSETS` other labels.
    """

    takes: ClassVar[type] = TokenBatch
    gives: ClassVar[type] = Batch

    seq_len: int
    eos_id: int
    _: KW_ONLY
    packing: Packing = "best_fit"
    window: int = 256
    batch_size: int = 8
    pad_id: int | None = None
    append_eod: bool = True
    outputs: tuple[str, ...] = DEFAULT_OUTPUTS
    masking: Masking | None = None
    subset_names: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch_size", "window"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PilekitError(f"{name} is a whole number from 1 on, not {visible(repr(value), 80)}")
        for name, needed in (("eos_id", True), ("pad_id", False)):
            value = getattr(self, name)
            if (value is not None or needed) and (type(value) is not int or value < 0):
                raise PilekitError(
                    f"{name} is the id of a token, a whole number from 0 on, not {visible(repr(value), 80)}; "
                    f"a Tokenizer gives it as `tokenizer.{name}`"
                )
        if self.packing not in PACKINGS:
            raise PilekitError(f"packing is one of {', '.join(PACKINGS)}, not {visible(repr(self.packing), 80)}")
        object.__setattr__(self, "outputs", checked_outputs(self.outputs))

    def __call__(self, batches: Iterator[TokenBatch]) -> Iterator[Batch]:
        """Pack `batches`, every token of them."""
        documents = _Documents(batches, self.seed, _SubsetIds(self.subset_names))
        lane = Lane(documents, Place(0, 0), Layout(self.seq_len, self.packing, self.window, self.append_eod))
        pad_id = self.eos_id if self.pad_id is None else self.pad_id
        writer = BatchWriter(self.seq_len, self.outputs, pad_id, self.eos_id, self.masking)
        while rows := lane.give(self.batch_size):
            yield writer.batch(rows, list(documents.shard_names))


class _Documents:
    """The documents of token batches, as a lane takes them: a batch is a position."""

    def __init__(self, batches: Iterable[TokenBatch], seed: int, subset_ids: _SubsetIds) -> None:
        self._batches = (pair for pair in enumerate(batches) if len(pair[1]))
        self._seed, self._subset_ids = seed, subset_ids
        self.shard_names: dict[str, int] = {}

    def next(self, documents: int, tokens: int) -> TokenizedDocuments | None:
        """The next batch, however large."""
        position, batch = next(self._batches, (0, None))
        if batch is None:
            return None
        count, shard = len(batch), self.shard_names.setdefault(batch.shard, len(self.shard_names))
        orders = np.arange(count)
        return TokenizedDocuments(
            *(batch.ids, batch.offsets, self._subset_ids.of(batch.subsets), np.full(count, shard), batch.numbers),
            *(mix(self._seed, 0, position, orders), np.full(count, position), orders, np.zeros(count, np.int64)),
        )

    def close(self) -> None:
        """Nothing is open."""


class _SubsetIds(dict[str, int]):
    """Subset name -> id, in the order of the ids; a name that is asked for and not there gets the next one."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__((name, index) for index, name in enumerate(names))
        self._most = len(names) + MAX_SUBSETS

    def __missing__(self, name: str) -> int:
        if len(self) >= self._most:
            raise too_many_subsets(MAX_SUBSETS)
        self[name] = len(self)
        return self[name]

    def of(self, names: list[str]) -> Int64:
        """The ids of `names`, int64 [documents]."""
        return np.fromiter(map(self.__getitem__, names), np.int64, len(names))
