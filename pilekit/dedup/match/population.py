"""The documents that are compared with each other, numbered, and the one order in which they are kept.

An id counts the documents of all sketches, one after the other in corpus order; those of an earlier run, against which
the corpus is compared, come first. A rank is a document's place in the keeper order, as a number of 64 bits:

    bit 63        0 for a document of the earlier run, 1 for others
    bits 32-62    2^31 - 1 - UTF-8 bytes of the text where the longest is kept; 0 where the first is
    bits 0-31     the id

The lower rank is kept. Ranks are unique, so the order is total, and the id is part of them, so two documents are
compared, sorted and written by rank alone. Nothing is held per document but, for an earlier run, a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pilekit.dedup.sketch.sketch_shard import ShardSketch
from pilekit.errors import PilekitError, visible

Keep = Literal["longest", "first"]
Ranks = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

MAX_DOCUMENTS = 1 << 32
_NOT_AGAINST = np.uint64(1 << 63)
_LONGEST = (1 << 31) - 1


def ids_of(ranks: Ranks) -> Ids:
    """The ids in these ranks."""
    return ranks.astype(np.uint32)


def ranks_of(ids: npt.NDArray[np.integer], text_bytes: npt.NDArray[np.integer], keep: Keep, *, against: bool) -> Ranks:
    """The ranks of documents: their ids, the UTF-8 bytes of their texts, and whether they are of the earlier run."""
    ranks = ids.astype(np.uint64)
    if keep == "longest":
        ranks |= (_LONGEST - text_bytes.astype(np.int64)).astype(np.uint64) << np.uint64(32)
    return ranks if against else ranks | _NOT_AGAINST


class Population:
    """Sketched documents with ids and ranks.

    sketches   all sketches, of the earlier run first
    base       the id of each sketch's first document, and the number of all documents; int64 [sketches + 1]
    documents  how many ids there are; some may be of documents that the earlier run removed, and are never given out
    first_own  the id from which on documents are those of this run, not of the earlier one
    """

    def __init__(self, sketches: Sequence[ShardSketch], keep: Keep, against: Iterable[tuple[ShardSketch, Mask]] = ()):
        """Number the documents of `sketches`, which are in corpus order.

        keep      "longest": of similar documents the longest is kept, of equally long ones the first; or "first"
        against   sketches of an earlier run, each with what it kept: bool, by document number
        """
        self.keep = keep
        self.sketches: list[ShardSketch] = []
        self._masks: list[npt.NDArray[np.uint8]] = []
        for sketch, mask in against:
            if len(mask) < sketch.header.lines:
                raise PilekitError(f"{visible(sketch.header.shard)}: its mask is too short for its sketch")
            self.sketches.append(sketch)
            self._masks.append(np.packbits(mask, bitorder="little"))
        earlier = len(self.sketches)
        self.sketches.extend(sketches)
        self.base = np.cumsum([0, *(sketch.documents for sketch in self.sketches)], dtype=np.int64)
        self.documents = int(self.base[-1])
        self.first_own = int(self.base[earlier])
        if self.documents > MAX_DOCUMENTS:
            raise PilekitError(
                f"{self.documents:,} documents are more than can be compared at once ({MAX_DOCUMENTS:,}); take fewer "
                "subsets, or deduplicate parts of the corpus each for itself"
            )

    def chunks(self, columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, npt.NDArray[Any]]]]:
        """(ranks, columns of the sketches) of all documents, in the order of ids, at most 65,536 at a time.

        Documents that the earlier run removed are left out.
        """
        for place, sketch in enumerate(self.sketches):
            mask = self._masks[place] if place < len(self._masks) else None
            wanted = [*columns, "text_bytes"] if mask is None else [*columns, "text_bytes", "number"]
            first = int(self.base[place])
            for chunk in sketch.chunks(list(dict.fromkeys(wanted))):
                sizes = chunk["text_bytes"]
                ids = np.arange(first, first + len(sizes))
                first += len(sizes)
                ranks = ranks_of(ids, sizes, self.keep, against=place < len(self._masks))
                values = {name: chunk[name] for name in columns}
                if mask is not None:
                    numbers = chunk["number"]
                    kept = (mask[numbers >> 3] >> (numbers & 7).astype(np.uint8)) & 1 == 1
                    ranks, values = ranks[kept], {name: column[kept] for name, column in values.items()}
                if len(ranks):
                    yield ranks, values

    def locate(self, ids: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(which of `sketches`, which row of it) of these ids, in any order; int64 [ids] each."""
        ids = ids.astype(np.int64)
        places = np.searchsorted(self.base, ids, side="right") - 1
        return places, ids - self.base[places]
