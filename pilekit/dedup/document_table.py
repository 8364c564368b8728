"""Number the documents to compare, and rank them in keeper order.

An id counts the documents of all sketches in corpus order; documents of earlier runs come first, then those of
protected shards. A document of either is fixed: it is never removed. A rank is a document's place in keeper order, as a
64-bit number:

    bit 63        0 for a fixed document, 1 for others
    bits 32-62    2^31 - 1 - UTF-8 bytes of the text where the longest is kept; 0 where the first is
    bits 0-31     the id

The document with the lower rank is kept. Ranks are unique, so the order is total. A rank contains the id, so documents
are compared, sorted and written by rank alone. A table on disk has a row for each document, with the facts for the
proofs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pilekit.artifacts.sort import MAX_DOCUMENTS
from pilekit.artifacts.sort.scratch_files import scratch_array
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.errors import PilekitError
from pilekit.shards.keep_mask import KeepMask

Keep = Literal["longest", "first"]
Ranks = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

REMOVABLE = np.uint64(1 << 63)
"""The lowest rank of a document that is not fixed."""
_LONGEST = (1 << 31) - 1

ROW = np.dtype([("number", "<u4"), ("text_bytes", "<u4"), ("label", "<u4")])
"""A document in the table: its number in its shard, its UTF-8 bytes, and the place of its subset in `labels`."""


def ids_of(ranks: Ranks) -> Ids:
    """The ids in these ranks."""
    return ranks.astype(np.uint32)


def ranks_of(ids: npt.NDArray[np.integer], text_bytes: npt.NDArray[np.integer], keep: Keep, *, fixed: bool) -> Ranks:
    """The ranks of documents with these ids and sizes; `fixed`: they are never removed."""
    ranks = ids.astype(np.uint64)
    if keep == "longest":
        ranks |= (_LONGEST - text_bytes.astype(np.int64)).astype(np.uint64) << np.uint64(32)
    return ranks if fixed else ranks | REMOVABLE


class DocumentTable:
    """Sketched documents with ids and ranks.

    sketches         all sketches, earlier runs first
    base             the id of each sketch's first document, then the number of all documents; int64 [sketches + 1]
    documents        number of ids; ids of documents that an earlier run removed are not used
    first_of_run     the first id that is not of an earlier run
    first_removable  the first id that is not of a fixed document
    labels           names of the subsets, in alphabetical order
    rows             a `ROW` for each id
    """

    def __init__(
        self,
        sketches: Sequence[ShardSketch],
        keep: Keep,
        folder: Path,
        against: Iterable[tuple[ShardSketch, KeepMask]] = (),
        protected: int = 0,
    ):
        """Number the documents of `sketches`, which are in corpus order.

        keep        "longest": of similar documents the longest is kept, of equally long ones the first; or "first"
        folder      for the table
        against     sketches of earlier runs, each with the mask of the documents that the run kept
        protected   the number of sketches, the first ones, whose documents are fixed
        """
        self.keep = keep
        pairs = list(against)
        for sketch, mask in pairs:
            if mask.header.lines < sketch.header.lines:
                raise PilekitError(f"{sketch.header.shard}: its mask is too short for its sketch")
        self.sketches = [*(sketch for sketch, _ in pairs), *sketches]
        self._masks = [mask for _, mask in pairs]
        self.base = np.cumsum([0, *(sketch.documents for sketch in self.sketches)], dtype=np.int64)
        self.documents = int(self.base[-1])
        self._fixed = len(pairs) + protected
        self.first_of_run, self.first_removable = int(self.base[len(pairs)]), int(self.base[self._fixed])
        if self.documents > MAX_DOCUMENTS:
            raise PilekitError(
                f"{self.documents:,} documents are more than can be compared at once ({MAX_DOCUMENTS:,}); take fewer "
                "subsets, or deduplicate parts of the corpus separately"
            )
        self.labels = sorted({label for sketch in self.sketches for label in sketch.subset_names})
        code_of = {label: code for code, label in enumerate(self.labels)}
        self.rows = scratch_array(folder, ROW, self.documents)
        begin = 0
        for sketch in self.sketches:
            codes = np.array([code_of[label] for label in sketch.subset_names], dtype=np.uint32)
            for chunk in sketch.chunks(["number", "text_bytes", "subset"]):
                rows = self.rows[begin : begin + len(chunk["number"])]
                rows["number"], rows["text_bytes"] = chunk["number"], chunk["text_bytes"]
                rows["label"] = codes[chunk["subset"]]
                begin += len(rows)

    def chunks(self, columns: Sequence[str]) -> Iterator[tuple[Ranks, dict[str, npt.NDArray[Any]]]]:
        """(ranks, columns of the sketches) of all documents, in the order of ids, at most 65,536 at a time.

        Documents that an earlier run removed are left out.
        """
        begin = 0
        for place, sketch in enumerate(self.sketches):
            for chunk in sketch.chunks(columns):
                rows = self.rows[begin : begin + len(chunk[columns[0]])]
                ids = np.arange(begin, begin + len(rows))
                begin += len(rows)
                ranks = ranks_of(ids, rows["text_bytes"], self.keep, fixed=place < self._fixed)
                if place < len(self._masks):
                    is_kept = self._masks[place].keeps(rows["number"])
                    ranks, chunk = ranks[is_kept], {name: column[is_kept] for name, column in chunk.items()}
                if len(ranks):
                    yield ranks, chunk
