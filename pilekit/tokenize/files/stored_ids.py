"""`StoredIds`: the ids of documents, where they stand in mapped token files; and `copied`, which reads them.

A stream finds the documents of a unit, orders and cuts them as numbers, and then copies the ids of a whole window by
one compiled loop, straight from the mapped files into their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from pilekit.corpus.shuffle import Int64
from pilekit.tokenize.files.id_kernels import copy_ids, drop_endings, find_spans
from pilekit.tokenize.files.token_file import Mapped, TokenFile, check_sizes

Ids = npt.NDArray[Any]


# Not frozen: making a frozen one takes three times as long.
@dataclass(eq=False)
class StoredIds(Sequence[Ids]):
    """The ids of some documents: `stored[i]` are those of document i, and a slice is of some of the documents.

    mapped            the files that hold ids
    arrays            the mapped ids, uint16 or int32: of each file one array, or those of the parts of its `.bin` that
                      are needed. Or what a tokenizer gave, uint32
    sources           int64 [documents]: the number of each document's array
    begins, lengths   int64 [documents]: where each document begins in its array, and how many ids it has
    """

    mapped: Sequence[Mapped]
    arrays: Sequence[Ids]
    sources: Int64
    begins: Int64
    lengths: Int64

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Ids: ...
    @overload
    def __getitem__(self, index: slice) -> StoredIds: ...
    def __getitem__(self, index: int | slice) -> Ids | StoredIds:
        if isinstance(index, slice):
            return self._at(index)
        begin, end = self.begins[index], self.begins[index] + self.lengths[index]
        ids: Ids = self.arrays[self.sources[index]][begin:end]
        return ids

    def take(self, documents: Int64) -> StoredIds:
        """Those of these documents, in this order."""
        return self._at(documents)

    def _at(self, documents: Int64 | slice) -> StoredIds:
        places = self.sources[documents], self.begins[documents], self.lengths[documents]
        return StoredIds(self.mapped, self.arrays, *places)


def stored_in(file: TokenFile, documents: Int64, ending: int | None = None) -> StoredIds:
    """The ids of these documents of a file, without an `ending` as last id.

    PilekitError if the file became shorter since it was opened.
    """
    check_sizes(file.mapped[:1])
    begins, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
    firsts, lasts = file.first_sequences(documents), file.first_sequences(documents + 1)
    find_spans(firsts, lasts, file.pointers, file.dtype.itemsize, file.tokens, begins, lengths)
    stored = _in_parts(file, begins, lengths)
    if ending is not None:
        check_sizes(stored.mapped)
        for number, ids in enumerate(stored.arrays):
            drop_endings(ids, number, stored.sources, stored.begins, lengths, ending)
    return stored


def _in_parts(file: TokenFile, begins: Int64, lengths: Int64) -> StoredIds:
    """Documents that begin at the ids `begins` of their file."""
    arrays, firsts = file.part_ids
    if len(arrays) == 1:
        return StoredIds(file.mapped[1:], arrays, np.zeros(len(begins), np.int64), begins, lengths)
    part = firsts.searchsorted(begins, side="right") - 1
    is_cut = begins + lengths > firsts[part] + np.array([len(ids) for ids in arrays])[part]
    needed, sources = np.unique(part, return_inverse=True)
    # A document that several parts of the `.bin` share is an array of its own.
    cut, relative = np.flatnonzero(is_cut), begins - firsts[part]
    sources[cut], relative[cut] = len(needed) + np.arange(len(cut)), 0
    if len(cut):
        file.check_sizes()
    joined = (file.ids(begin, begin + length) for begin, length in zip(begins[cut], lengths[cut], strict=True))
    mapped, own = [file.mapped[1 + number] for number in needed], [arrays[number] for number in needed]
    return StoredIds(mapped, [*own, *joined], sources, relative, lengths)


def no_ids() -> StoredIds:
    """Of no documents."""
    nothing = np.zeros(0, np.int64)
    return StoredIds([], [], nothing, nothing, nothing)


def join_stored(parts: Sequence[StoredIds]) -> StoredIds:
    """All documents of `parts`, which has at least one entry."""
    if len(parts) == 1:
        return parts[0]
    arrays = {id(ids): ids for part in parts for ids in part.arrays}
    number_of = {key: number for number, key in enumerate(arrays)}
    sources = [np.array([number_of[id(ids)] for ids in part.arrays], np.int64)[part.sources] for part in parts]
    return StoredIds(
        [*dict.fromkeys(mapped for part in parts for mapped in part.mapped)],
        [*arrays.values()],
        np.concatenate(sources),
        np.concatenate([part.begins for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def copied(stored: StoredIds) -> tuple[npt.NDArray[np.uint32], Int64, int]:
    """The ids of all documents: (ids, offsets, the largest id or -1).

    Ids are uint32 [tokens], one document after another, and offsets int64 [documents + 1]. PilekitError if a file
    became shorter since it was opened.
    """
    check_sizes(stored.mapped)
    offsets = np.zeros(len(stored) + 1, np.int64)
    stored.lengths.cumsum(out=offsets[1:])
    ids, largest = np.empty(int(offsets[-1]), np.uint32), -1
    for number, source in enumerate(stored.arrays):
        largest = max(largest, copy_ids(source, number, stored.sources, stored.begins, stored.lengths, offsets, ids))
    return ids, offsets, largest
