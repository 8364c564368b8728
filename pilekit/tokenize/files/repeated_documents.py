"""Documents that stand several times in token files: how often each, and their places in the shard.

A weight of 2.7 is two uses, and a third for seven of ten documents, drawn by the document's hash as in the first epoch
of a stream with seed 0. Copies of one document must not be neighbours, because many trainers read a file from its
beginning to its end. So with n documents in a shard, and at most K uses of one, use k of document i stands behind
document (i + k n / K) mod n: a document's uses are as far from each other as K lets them be.

A shard's ids and records are written once first, then in this order, document by document. Memory holds the tokens and
the uses of the shard's documents.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.corpus.shuffle import Int64, drawn_below
from pilekit.tokenize.files.token_documents import RECORD

_PLACED = 1 << 20
"""Uses that are placed at a time, if every document had as many as one can have."""


class Weights(Protocol):
    """How often documents count. It can be pickled."""

    def described(self) -> dict[str, Any]:
        """All that the weights depend on, as JSON types."""
        ...

    def of_shard(self, shard: str) -> npt.NDArray[np.float64]:
        """The weight of each line of the shard of this name, float64 [lines], each at least 1."""
        ...


def uses_of(weights: npt.NDArray[np.float64], shard: int, numbers: Int64) -> Int64:
    """The uses of the documents of these numbers in the shard of this index, int64 [numbers]."""
    chosen = weights[numbers]
    whole = np.floor(chosen)
    uses: Int64 = whole.astype(np.int64) + drawn_below(chosen - whole, 0, 0, shard, numbers)
    return uses


def places_of_uses(uses: Int64) -> Iterator[Int64]:
    """The documents in the order of a file, by index, each as often as `uses` says, in pieces."""
    count, most = len(uses), int(uses.max(initial=0))
    at_a_time = max(1, _PLACED // max(1, most))
    for begin in range(0, count, at_a_time):
        slots = np.arange(begin, min(begin + at_a_time, count))
        # A row for each use: the document that stands behind each slot.
        documents = (slots - np.arange(most)[:, None] * count // most) % count
        is_there = uses[documents] > np.arange(most)[:, None]
        yield documents.T[is_there.T]


def repeat_documents(ids_path: Path, records_path: Path, item: int, uses: Int64) -> None:
    """Write a shard's ids, `item` bytes each, and its records again, with each document as often as `uses` says."""
    if not len(uses) or int(uses.max()) == 1:
        return
    records = np.fromfile(records_path, RECORD)
    ends = np.cumsum(records["tokens"], dtype=np.int64) * item
    begins = ends - records["tokens"].astype(np.int64) * item
    with (
        ids_path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        write_atomically(ids_path) as ids_out,
        write_atomically(records_path) as records_out,
    ):
        for documents in places_of_uses(uses):
            spans = zip(begins[documents].tolist(), ends[documents].tolist(), strict=True)
            ids_out.writelines(mapped[begin:end] for begin, end in spans)
            records_out.write(records[documents].tobytes())
