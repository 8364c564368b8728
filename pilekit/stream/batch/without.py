"""`Without`: documents that stand in the rows and give no loss, for a run that did not learn from them.

Leaving the documents out would move all later rows, and the two runs would differ in everything. Here only the labels
of these documents are ignored. Order, rows, packing and all other labels stay as they are, on any number of ranks and
workers. If attention keeps documents apart, no other document's loss changes for the same weights. Up to the first step
that has such a document, both runs are equal bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from pilekit.corpus import resolve_subsets
from pilekit.corpus.listed_documents import documents_of_file
from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, shortened
from pilekit.stream.batch.mlm import IGNORED
from pilekit.stream.pack.window import Pieces
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.lane_documents import NUMBER, SHARD, SUBSET, Table
from pilekit.stream.read.token_files import TokenCorpus

_SHARD_BITS = 40
"""A document's key is its shard's number and, in this many bits, its own."""


@dataclass(frozen=True, eq=False)
class Without:
    """Documents that give no loss.

    keys       int64 [documents], increasing: listed documents
    subset     the id of a subset whose documents all give none
    identity   what a state says of them
    """

    keys: Int64
    subset: int | None
    identity: dict[str, Any]

    @classmethod
    def of(cls, source: str | Path, documents: StreamDocuments) -> Without:
        """The documents of a list, if `source` is a file, else of the subset of this name.

        PilekitError for a file that is no list, for a shard that the stream does not read, and for an unknown subset.
        """
        if not (Path(source).suffix in {".parquet", ".jsonl", ".txt"} or Path(source).exists()):
            return cls(np.zeros(0, np.int64), *_subset(str(source), documents))
        if isinstance(documents.corpus, TokenCorpus):
            documents.corpus.needs_table("without")
        number_of = {shard.name: number for number, shard in enumerate(documents.corpus.shards)}
        places = documents_of_file(str(source), number_of)
        if wrong := next((place for place in places if not 0 <= place[1] < 1 << _SHARD_BITS), None):
            raise PilekitError(f"{source}: no shard has a document {wrong[1]:,}, as it says of {wrong[0]}")
        keys = np.unique(np.array([(number_of[shard] << _SHARD_BITS) + number for shard, number in places], np.int64))
        named = sorted(set(places))
        content = xxhash.xxh3_128_hexdigest("\n".join(f"{shard} {number}" for shard, number in named).encode())
        return cls(keys, None, {"documents": len(keys), "content": content})

    def hide(self, labels: torch.Tensor, pieces: Pieces) -> None:
        """Set the labels, int64 [rows, seq_len], of these documents to IGNORED; `pieces` are those of the rows."""
        hidden = self.hides(pieces.table)
        if not hidden.any():
            return
        ends = np.cumsum(pieces.length)
        of_row = np.repeat(np.arange(len(pieces.per_row)), pieces.per_row)
        before = np.concatenate(([0], ends))[np.cumsum(pieces.per_row) - pieces.per_row]  # tokens of all rows before
        end = ends - before[of_row]
        for piece in np.flatnonzero(hidden).tolist():
            labels[of_row[piece], end[piece] - pieces.length[piece] : end[piece]] = IGNORED

    def hides(self, table: Table) -> npt.NDArray[np.bool_]:
        """For each piece with this table of documents, whether it is one of these documents'."""
        if self.subset is not None:
            return np.equal(table[:, SUBSET], self.subset)
        return np.isin((table[:, SHARD] << _SHARD_BITS) + table[:, NUMBER], self.keys)


def _subset(name: str, documents: StreamDocuments) -> tuple[int, dict[str, Any]]:
    """(id, identity) of the subset with this name."""
    (exact,) = resolve_subsets(name, manifest=documents.corpus.manifest)
    if exact not in documents.subset_ids:
        raise PilekitError(
            f"the data has no subset {shortened(name, 80)!r}, and there is no such file; its subsets are "
            f"{shortened(', '.join(documents.subset_ids), 200)}"
        )
    return documents.subset_ids[exact], {"subset": exact}
