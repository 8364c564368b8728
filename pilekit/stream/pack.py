"""`Pack`: the stage from token batches to batches of packed rows.

Batches in need not fit batches out: a batch out is filled from as many of them as it takes, and handed on the moment it
is full. Python runs once per batch in and out, never per row or per document; the loop over tokens is in concat.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import chain, islice
from typing import ClassVar

import numpy as np

from pilekit.documents import MAX_SUBSETS, too_many_subsets
from pilekit.errors import PilekitError, visible
from pilekit.stream.batch import Batch, OpenBatch
from pilekit.stream.concat import Int64
from pilekit.stream.state import Place
from pilekit.tokenize import TokenBatch


@dataclass(frozen=True)
class Pack:
    """Pack documents, each followed by `eos_id`, into rows: one after another, cut at the row's edge.

    seq_len        tokens in a row
    eos_id         the token that ends each document; a document without tokens is this token alone
    batch_size     rows in a batch; the last batch of a pass has fewer where there are no more
    pad_id         fills the pass's last row; `eos_id` by default
    subset_names   subset ids count through these names; other labels get the next ids, in the order in which they come

    More than `MAX_SUBSETS` other labels are a PilekitError: every batch's state names them.
    """

    takes: ClassVar[type] = TokenBatch
    gives: ClassVar[type] = Batch

    seq_len: int
    eos_id: int
    _: KW_ONLY
    batch_size: int = 8
    pad_id: int | None = None
    subset_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PilekitError(f"{name} is a whole number from 1 on, not {value!r}")
        for name, needed in (("eos_id", True), ("pad_id", False)):
            value = getattr(self, name)
            if (value is not None or needed) and (type(value) is not int or value < 0):
                raise PilekitError(
                    f"{name} is the id of a token, a whole number from 0 on, not {visible(repr(value), 80)}; "
                    f"a Tokenizer gives it as `tokenizer.{name}`"
                )

    def __call__(self, batches: Iterator[TokenBatch], start: Place | None = None) -> Iterator[Batch]:
        """Pack `batches`, every token of them; with `start`, they begin with the document of that place.

        PilekitError if that document is not there or is shorter than the place says: then the shard has changed.
        """
        pad_id = self.eos_id if self.pad_id is None else self.pad_id
        new_subsets = start.new_subsets if start is not None else ()
        subset_ids = _SubsetIds((*self.subset_names, *new_subsets), most=len(self.subset_names) + MAX_SUBSETS)
        named = len(subset_ids)  # names that the documents packed so far, or the manifest, have asked for
        place = start
        open_batch: OpenBatch | None = None
        token = 0
        batches = filter(len, batches)
        if start is not None and start.token:
            batches, token = _beginning_inside(batches, start), start.token
        for tokens in batches:
            ids = subset_ids.of(tokens.subsets)
            document = 0
            while document < len(tokens):
                if open_batch is None:
                    open_batch = OpenBatch(self.batch_size, self.seq_len)
                first = document
                document, token = open_batch.fill(tokens, ids, self.eos_id, document, token)
                touched = document + (token > 0)
                named = max(named, 1 + int(ids[first:touched].max()))
                place = Place(
                    tokens.shard,
                    int(tokens.numbers[document]) if token else int(tokens.numbers[document - 1]) + 1,
                    token,
                    tuple(islice(subset_ids, len(self.subset_names), named)),
                )
                if open_batch.full:
                    yield open_batch.close(place, pad_id)
                    open_batch = None
        if open_batch is not None and place is not None:
            yield open_batch.close(place, pad_id)


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


def _beginning_inside(batches: Iterator[TokenBatch], start: Place) -> Iterator[TokenBatch]:
    """`batches`, if they begin with the document that `start` is in, and it has the tokens already used of it."""
    first = next(batches, None)
    if (
        first is None
        or (first.shard, int(first.numbers[0])) != (start.shard, start.document)
        or int(first.offsets[1]) < start.token
    ):
        raise PilekitError(
            f"cannot resume inside document {start.document:,} of {visible(start.shard)}: it is not there, or shorter "
            "than when the state was taken; the shard has changed, so put the old one back or start without the state"
        )
    return chain([first], batches)
