"""`Batch`: what a stream hands out, and `OpenBatch`, one that is being filled.

Each batch owns its memory: nobody else sees what a training loop writes into it, and keeping one batch keeps no other
alive. Allocating costs nothing here, because the allocator gives a finished batch's memory, still in the processor's
cache, to the next one. The columns of a batch lie in one block of memory, one after the other, because a DataLoader's
worker sends one block through shared memory twice as fast as five.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from pilekit.errors import PilekitError
from pilekit.stream.concat import IGNORED, Int64, concat
from pilekit.stream.state import Place
from pilekit.tokenize import TokenBatch

COLUMNS = ("input_ids", "labels", "doc_ids", "position_ids", "subset_ids")


class Batch(dict[str, torch.Tensor]):
    """Rows ready for training: a dict of five int64 tensors [rows, seq_len], each contiguous and the batch's own.

    input_ids     tokens; every document is followed by EOD, the rest of a pass's last row is padding
    labels        as Hugging Face wants them: `labels[i]` is the label of token i and the model shifts. -100 on padding
                  and on the first token of a document, which nothing before it can predict; EOD counts. Where a row
                  begins inside a document, its first token keeps its label (the shift drops the row's first label)
    doc_ids       documents counted inside the row from 0; -1 on padding
    position_ids  from 0 in each document, and again at each row's start: what a document has in an earlier row cannot
                  be attended to, and positions stay below seq_len; 0 on padding
    subset_ids    index into the stream's `subset_names`; -1 on padding

    stream_state  (attribute) the place after this batch: JSON types, for `PileStream.advance`
    """

    def __init__(
        self,
        columns: dict[str, torch.Tensor],
        stream_state: dict[str, Any],
        segments: list[tuple[str, Int64]],
        row_first: Int64,
        row_documents: Int64,
    ) -> None:
        super().__init__(columns)
        self.stream_state = stream_state
        self._segments = segments
        self._row_first = row_first
        self._row_documents = row_documents

    def documents(self) -> list[list[tuple[str, int]]]:
        """The identities (shard name, document number) of each row's documents: entry [row][doc_id].

        So `batch.documents()[row][batch["doc_ids"][row, i]]` is the document of token i. A document that goes on in the
        next row is named in both. A DataLoader's worker and `pin_memory` keep this; a dict made from it does not.
        """
        named = [(shard, number) for shard, numbers in self._segments for number in numbers.tolist()]
        return [
            named[first : first + count]
            for first, count in zip(self._row_first.tolist(), self._row_documents.tolist(), strict=True)
        ]


def _refuse_to_collate(batches: list[Batch], *, collate_fn_map: object = None) -> NoReturn:
    raise PilekitError(
        "the items of a PileStream are batches already, and this DataLoader would batch them again: write "
        "DataLoader(stream, batch_size=None)"
    )


# torch's own place for how to collate a type. A DataLoader collates unless told batch_size=None, and would otherwise
# hand out [1, rows, seq_len].
default_collate_fn_map[Batch] = _refuse_to_collate


class OpenBatch:
    """`rows` rows of `seq_len` tokens that are being filled."""

    def __init__(self, rows: int, seq_len: int) -> None:
        self._block = torch.empty((len(COLUMNS), rows, seq_len), dtype=torch.int64)
        self.row_first = np.empty(rows, np.int64)
        self.row_documents = np.empty(rows, np.int64)
        self.seq_len = seq_len
        self.capacity = rows * seq_len
        self.cursor = 0
        self._flat: list[Int64] = list(self._block.view(len(COLUMNS), -1).numpy())
        self._doc_id = 0
        self._listed = 0
        self._segments: list[tuple[str, Int64]] = []

    @property
    def full(self) -> bool:
        """No place left."""
        return self.cursor == self.capacity

    def fill(self, tokens: TokenBatch, subset_ids: Int64, eos_id: int, document: int, token: int) -> tuple[int, int]:
        """Write `tokens` from its `document`, `token` on; returns where writing ended, (document, token)."""
        first = document
        document, token, self.cursor, self._doc_id, self._listed = concat(
            *(tokens.ids, tokens.offsets, subset_ids, eos_id, self.seq_len),
            *(document, token, self.cursor, self._doc_id, self._listed),
            *(*self._flat, self.row_first, self.row_documents),
        )
        # A copy, so that a batch which is kept does not keep a whole TokenBatch.
        self._segments.append((tokens.shard, tokens.numbers[first : document + (token > 0)].copy()))
        return document, token

    def close(self, place: Place, pad_id: int) -> Batch:
        """The batch: without its empty rows, and the last row padded."""
        rows = -(-self.cursor // self.seq_len)
        block = self._block
        if not self.full:
            for column, padding in zip(self._flat, (pad_id, IGNORED, -1, 0, -1), strict=True):
                column[self.cursor : rows * self.seq_len] = padding
            block = block[:, :rows].clone()
        return Batch(
            # `.data`, so that autograd does not take a change of one column for a change of all.
            {name: block[index].data for index, name in enumerate(COLUMNS)},
            place.to_json(),
            self._segments,
            self.row_first[:rows],
            self.row_documents[:rows],
        )
