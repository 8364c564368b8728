"""`concat`: documents one after another, cut at the row's edge, written into all five columns in one pass.

This is the only loop of the stream that touches single tokens, so it is compiled (numba; the machine code is cached on
disk) and releases the GIL. It reads the tokenizer's own buffer and writes the final int64 columns: no token is copied
in between. It stops when the batch is full or the documents are used up, and can go on at exactly that place: that
place, (document, token), is the stream's whole state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from pilekit.kernels import compiled

Int64 = npt.NDArray[np.int64]

IGNORED = -100
"""The label that Hugging Face's and torch's losses leave out."""

_column = types.Array(types.int64, 1, "C")
_read_only = types.Array(types.int64, 1, "C", readonly=True)
_ids = types.Array(types.uint32, 1, "C", readonly=True)
# One signature, compiled (or fetched from the cache) on import; a writable array passes as a read-only one.
_arguments = (_ids, _read_only, _read_only, *[types.int64] * 7, *[_column] * 7)
_signature = types.UniTuple(types.int64, 5)(*_arguments)  # type: ignore[no-untyped-call]


@compiled(_signature)
def concat(
    ids: npt.NDArray[np.uint32],
    offsets: Int64,
    document_subsets: Int64,
    eos_id: int,
    seq_len: int,
    document: int,
    token: int,
    cursor: int,
    doc_id: int,
    listed: int,
    input_ids: Int64,
    labels: Int64,
    doc_ids: Int64,
    position_ids: Int64,
    subset_ids: Int64,
    row_first: Int64,
    row_documents: Int64,
) -> tuple[int, int, int, int, int]:
    """Write documents into the batch from `cursor` on, each followed by EOD, until either is used up.

    ids, offsets        uint32 [tokens], int64 [documents + 1]: the documents, without EOD
    document_subsets    int64 [documents]: each document's subset id
    document, token     where to begin: that many documents, and that many tokens of the next one, are already written
    cursor              places of the batch already written
    doc_id              the id of the next document in the open row
    listed              documents completed in this batch so far
    input_ids ...       the five columns, int64 [rows x seq_len], flat
    row_first, row_documents   int64 [rows]: per row, which of the batch's documents is its first, and how many it has

    Returns (document, token, cursor, doc_id, listed) as they are now.
    """
    documents = len(offsets) - 1
    capacity = len(input_ids)
    while document < documents and cursor < capacity:
        row = cursor // seq_len
        column = cursor - row * seq_len
        if column == 0:
            doc_id = 0
            row_first[row] = listed
        begin = offsets[document] + token
        left = offsets[document + 1] - begin + 1  # EOD belongs to the document it ends
        count = min(left, seq_len - column)
        ends = count == left
        from_text = count - 1 if ends else count
        subset = document_subsets[document]
        for i in range(from_text):
            token_id = np.int64(ids[begin + i])
            input_ids[cursor + i] = token_id
            labels[cursor + i] = token_id
        if ends:
            input_ids[cursor + from_text] = eos_id
            labels[cursor + from_text] = eos_id
        for i in range(count):
            doc_ids[cursor + i] = doc_id
            position_ids[cursor + i] = i
            subset_ids[cursor + i] = subset
        if token == 0:
            labels[cursor] = IGNORED
        cursor += count
        doc_id += 1
        row_documents[row] = doc_id
        if ends:
            document += 1
            token = 0
            listed += 1
        else:
            token += count
    return document, token, cursor, doc_id, listed
