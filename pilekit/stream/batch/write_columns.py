"""`write`: rows of a window written into a batch's columns, the stream's only loop over single tokens.

It is compiled and releases the GIL. It reads the tokenizer's own buffer and writes the final int64 columns, so no token
is copied in between. Each column has its own inner loop, which the compiler turns into vector instructions. A column
after `labels` that has length 0 is not written.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from pilekit.corpus.shuffle import Int64
from pilekit.workers.kernels import compiled

IGNORED = -100
"""The label that Hugging Face's and torch's losses leave out."""

NO_DOCUMENT = -1
"""The value of `doc_ids` and `subset_ids` on padding."""

_int64 = types.int64
_columns = types.UniTuple(types.Array(types.int64, 1, "C"), 5)  # type: ignore[no-untyped-call]
_read_only = types.Array(types.int64, 1, "C", readonly=True)
_ids = types.Array(types.uint32, 1, "C", readonly=True)


@compiled(types.void(_ids, *[_read_only] * 6, *[_int64] * 4, _columns))
def write(
    ids: npt.NDArray[np.uint32],
    offsets: Int64,
    document_subsets: Int64,
    document: Int64,
    begin: Int64,
    length: Int64,
    start: Int64,
    row: int,
    seq_len: int,
    eos_id: int,
    pad_id: int,
    columns: tuple[Int64, ...],
) -> None:
    """Write the rows of a window, with padding, as the batch's rows from `row` on.

    ids, offsets, document_subsets   as in `TokenizedDocuments`
    document, begin, length, start   as in `Rows`
    columns                          input_ids, labels, position_ids, doc_ids and subset_ids: int64 [rows x seq_len],
                                     flat; all but the first two may be [0]
    """
    input_ids, labels, position_ids, doc_ids, subset_ids = columns
    for turn in range(len(start) - 1):
        at = (row + turn) * seq_len
        row_begin, row_end = at, at + seq_len
        pieces = start[turn], start[turn + 1]
        for piece in range(pieces[0], pieces[1]):
            here = document[piece]
            source = offsets[here] + begin[piece]
            end = at + length[piece]
            from_text = min(length[piece], offsets[here + 1] - source)  # one less than the length if EOD ends the piece
            for i in range(from_text):
                input_ids[at + i] = np.int64(ids[source + i])
            if at + from_text < end:
                input_ids[end - 1] = eos_id
            for i in range(at, end):
                labels[i] = input_ids[i]
            if begin[piece] == 0 or at > row_begin:  # nothing before it in the row predicts it
                labels[at] = IGNORED
            if len(position_ids) > 0:
                for i in range(end - at):
                    position_ids[at + i] = i
            if len(doc_ids) > 0:
                doc_ids[at:end] = piece - pieces[0]
            if len(subset_ids) > 0:
                subset_ids[at:end] = document_subsets[here]
            at = end
        if at < row_end:
            for column, padding in zip(columns, (pad_id, IGNORED, 0, NO_DOCUMENT, NO_DOCUMENT)):  # noqa: B905 (numba)
                if len(column) > 0:
                    column[at:row_end] = padding
