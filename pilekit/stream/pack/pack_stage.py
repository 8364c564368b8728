"""`Pack`: the stage from token batches to batches of packed rows, for chains without a `PileStream`.

It is one lane that begins at the first document and has no place to go on from: windows of documents are packed alone,
rows go into batches in the windows' order, and a batch is handed on the moment it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.errors import PilekitError, visible
from pilekit.stream.batch.batch import DEFAULT_OUTPUTS, Batch, OpenBatch, checked_outputs
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.order.shuffle import mix
from pilekit.stream.pack.concat import unused
from pilekit.stream.pack.rows import Int64
from pilekit.stream.pack.window import PACKINGS, Packing, TokenizedDocuments, Window, joined, packed, room_for
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
        shard_names: dict[str, int] = {}
        documents = self._documents(batches, shard_names)
        open_batch = self._open_batch()
        for window in self._concat(documents) if self.packing == "concat" else self._windows(documents):
            given = 0
            while given < len(window.rows):
                count = min(open_batch.left, len(window.rows) - given)
                open_batch.fill(window, given, count)
                given += count
                if not open_batch.left:
                    yield open_batch.close(list(shard_names))
                    open_batch = self._open_batch()
        if open_batch.filled:
            yield open_batch.close(list(shard_names))

    def _open_batch(self) -> OpenBatch:
        return OpenBatch(
            self.batch_size,
            self.seq_len,
            self.outputs,
            pad_id=self.eos_id if self.pad_id is None else self.pad_id,
            eos_id=self.eos_id,
            append_eod=self.append_eod,
            masking=self.masking,
        )

    def _documents(
        self, batches: Iterable[TokenBatch], shard_names: dict[str, int]
    ) -> Iterator[tuple[TokenizedDocuments, Int64]]:
        """The documents of each batch, and their lengths."""
        subset_ids = _SubsetIds(self.subset_names, most=len(self.subset_names) + MAX_SUBSETS)
        for position, tokens in enumerate(batches):
            shard = shard_names.setdefault(tokens.shard, len(shard_names))
            documents = TokenizedDocuments(
                tokens.ids,
                tokens.offsets,
                subset_ids.of(tokens.subsets),
                np.full(len(tokens), shard, np.int64),
                tokens.numbers,
                mix(self.seed, 0, position, np.arange(len(tokens))),
            )
            yield documents, np.diff(tokens.offsets) + self.append_eod

    def _windows(self, batches: Iterable[tuple[TokenizedDocuments, Int64]]) -> Iterator[Window]:
        """Windows that are packed alone."""
        parts: list[TokenizedDocuments] = []
        taken = tokens = 0
        for documents, lengths in batches:
            begin = 0
            while begin < len(documents):
                count = room_for(lengths[begin:], self.window, taken, tokens)
                if count:
                    parts.append(documents.part(begin, begin + count))
                    tokens += int(lengths[begin : begin + count].sum())
                    taken += count
                    begin += count
                else:
                    yield packed(joined(parts), self.packing, self.seq_len, self.append_eod)
                    parts, taken, tokens = [], 0, 0
        if parts:
            yield packed(joined(parts), self.packing, self.seq_len, self.append_eod)

    def _concat(self, batches: Iterable[tuple[TokenizedDocuments, Int64]]) -> Iterator[Window]:
        """The full rows of each batch, after what was left of the one before; at the end, what is left of the last."""
        rest: TokenizedDocuments | None = None
        begin = 0
        for documents, _ in batches:
            documents = documents if rest is None else joined([rest, documents])
            window = packed(documents, "concat", self.seq_len, self.append_eod, first_begin=begin, last=False)
            yield window
            lengths = np.diff(documents.offsets) + self.append_eod
            document, begin = unused(lengths, begin + len(window.rows) * self.seq_len)
            rest = documents.part(document, len(documents))
        if rest is not None:
            yield packed(rest, "concat", self.seq_len, self.append_eod, first_begin=begin)


class _SubsetIds(dict[str, int]):
    """Subset name -> id, in the order of the ids; a name that is asked for and not there gets the next one."""

    def __init__(self, names: tuple[str, ...], most: int) -> None:
        super().__init__((name, index) for index, name in enumerate(names))
        self._most = most

    def __missing__(self, name: str) -> int:
        if len(self) >= self._most:
            raise too_many_subsets(MAX_SUBSETS)
        self[name] = len(self)
        return self[name]

    def of(self, names: list[str]) -> Int64:
        """The ids of `names`, int64 [documents]."""
        return np.fromiter(map(self.__getitem__, names), np.int64, len(names))
