"""`Batch`, the item of a stream, and `BatchWriter`, which makes batches from rows of windows.

Each batch owns its memory: a training loop may write into it, and keeping one batch keeps no other alive. A batch is
pickled as numpy arrays, so a DataLoader worker sends it through its pipe. Torch's shared memory would cost a file, a
socket and a handshake for each batch, and a killed worker would leave the file behind. Pickled values take 16 bits if
these suffice, a quarter of their size in the training loop, because the one process that receives all workers' batches
is the bottleneck. Arrays and 16 bits together give one worker half again as many tokens a second.

`write` is the stream's only loop over single tokens. It is compiled and releases the GIL. It reads the tokenizer's own
buffer and writes the final int64 columns, so no token is copied in between. Each column has its own inner loop, which
the compiler turns into vector instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from numba import types
from torch.utils.data._utils.collate import default_collate_fn_map

from pilekit.corpus.shuffle import Int64
from pilekit.display.fitted_table import Column, FittedTable
from pilekit.display.wrong_names import NearestNames, wrong_key
from pilekit.errors import PilekitError, shortened
from pilekit.stream.batch.mlm import IGNORED, Masking, mask
from pilekit.stream.pack.window import BEGIN, ENDS_ROW, FROM_TEXT, LENGTH, SOURCE, Pieces, Window
from pilekit.stream.read.lane_documents import SHARD, SUBSET
from pilekit.workers.kernels import compiled

_NARROWED = {(torch.device("cpu"), torch.int64), (torch.device("cpu"), torch.int32)}
"""Device and type of all tensors that a stream makes."""

COLUMNS = ("input_ids", "labels", "position_ids", "doc_ids", "subset_ids")
"""The outputs with an entry for each token, in their order in a batch."""

_TOKENS = ("input_ids", "labels")
"""The columns that are always written: labels are made from the ids, and masking reads and writes both."""

NO_DOCUMENT = -1
"""The value of `doc_ids` and `subset_ids` on padding."""

OUTPUTS = (*COLUMNS, "cu_seqlens", "max_seqlen")
"""All names that `outputs` may contain; `stream_state` is always there."""


class Batch(NearestNames, dict[str, torch.Tensor]):
    """Rows ready for training: a dict of contiguous tensors that the batch owns. `outputs` chooses among these:

    input_ids     int64 [rows, seq_len]: tokens; the free end of a row is padding
    labels        int64 [rows, seq_len], as Hugging Face wants them: `labels[i]` is the label of token i, and the model
                  shifts. EOD has its label. -100 on padding and on the first token of each document, which nothing
                  before it can predict, also where the rest of a long document follows another document in a row. If a
                  row begins inside a document, its first token keeps its label; the shift drops it. With
                  `objective="mlm"`: the original of each chosen token, -100 elsewhere
    position_ids  int64 [rows, seq_len]: from 0 in each document, and from 0 again at each row's start, because tokens
                  in an earlier row cannot be attended to; so positions stay below seq_len. 0 on padding
    doc_ids       int64 [rows, seq_len]: the number of the document in its row, from 0; -1 on padding
    subset_ids    int64 [rows, seq_len]: index into the stream's `subset_names`; -1 on padding
    cu_seqlens    int32 [segments + 1]: borders of the segments in the flattened batch of rows x seq_len tokens, from 0
                  to its end, for variable-length attention. A segment is one document's tokens in a row, or a row's
                  padding
    max_seqlen    int32 []: the length of the longest segment

    stream_state  int64, for `PileStream.advance`: the place after this batch; always there

    `to` moves a batch to a device. Frameworks that do this make another batch from its tensors; that batch has no
    `documents`. `pin_memory=True` of a DataLoader keeps them.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        pieces: Pieces | None = None,
        shard_names: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(tensors)
        self._pieces, self._shard_names = pieces, shard_names or {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle narrowed arrays, unless the user has put anything but integers on the CPU into the batch."""
        tensors = [tensor for tensor in self.values() if isinstance(tensor, torch.Tensor)]
        if len(tensors) < len(self) or not all((tensor.device, tensor.dtype) in _NARROWED for tensor in tensors):
            return Batch, (dict(self), self._pieces, self._shard_names)
        columns = {name: _narrowed(tensor.numpy()) for name, tensor in self.items()}
        return _unpickled, (columns, self._pieces, self._shard_names)

    def __copy__(self) -> Batch:
        return Batch(self, self._pieces, self._shard_names)

    def __repr__(self) -> str:
        def shape(tensor: object) -> str:
            return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else repr(tensor)

        return f"Batch({', '.join(f'{name}={shape(tensor)}' for name, tensor in self.items())})"

    def _repr_html_(self) -> str:
        columns = [
            Column[tuple[str, torch.Tensor]]("Tensor", lambda row: row[0]),
            Column("Type", lambda row: str(row[1].dtype)[6:], justify="left"),
            Column("Shape", lambda row: str(list(row[1].shape)), justify="left"),
        ]
        return FittedTable([item for item in self.items() if isinstance(item[1], torch.Tensor)], columns)._repr_html_()

    def __missing__(self, key: object) -> NoReturn:
        raise wrong_key(self, key)

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Batch:
        """The batch with its tensors on `device`, like `Tensor.to`; keeps its documents, and `stream_state` unmoved."""
        moved = self.__copy__()
        moved.update(
            {
                name: tensor.to(device, non_blocking=non_blocking)
                for name, tensor in self.items()
                if name != "stream_state"
            }
        )
        return moved

    def documents(self) -> list[list[tuple[str, int]]]:
        """The identities (shard name, document number) of each row's documents: entry `[row][doc_id]`.

        So `batch.documents()[row][batch["doc_ids"][row, i]]` is the document of token i. A document that continues in
        another row is named in both. DataLoader workers and `pin_memory` keep the identities. PilekitError for a batch
        that was made from another batch's tensors.
        """
        return self.pieces.documents(self._shard_names)

    @property
    def pieces(self) -> Pieces:
        """The pieces of documents in its rows. PilekitError as for `documents`."""
        if self._pieces is None:
            raise PilekitError(
                "this batch was made from another one's tensors, as by moving it to a device, and does not know its "
                "documents; call documents() on the batch as the stream's loader gave it"
            )
        return self._pieces


def _refuse_to_collate(batches: list[Batch], *, collate_fn_map: object = None) -> NoReturn:
    raise PilekitError(
        "the items of a PileStream are batches already, and this DataLoader would batch them again: write "
        "DataLoader(stream, batch_size=None)"
    )


# torch's table of how to collate each type. Without batch_size=None a DataLoader collates, and would hand out tensors
# [1, rows, seq_len].
default_collate_fn_map[Batch] = _refuse_to_collate


def checked_outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """`outputs` as a tuple; PilekitError if it is empty, or if a name is not in `OUTPUTS` or occurs twice."""
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    wrong = [name for name in names if name not in OUTPUTS]
    if wrong or not names or len(set(names)) < len(names):
        problem = f"not {shortened(repr(wrong[0]), 80)}" if wrong else f"each once, not {shortened(repr(names), 200)}"
        raise PilekitError(f"outputs names what a batch holds, some of {', '.join(OUTPUTS)}, {problem}")
    return names


@dataclass(frozen=True)
class BatchWriter:
    """Turns rows into a batch.

    outputs     the tensors of the batch, names of `OUTPUTS`
    pad_id      fills the free end of a row
    eos_id      ends each document
    masking     for `objective="mlm"`: which tokens can be chosen, and their replacements; None: labels are the tokens
    """

    seq_len: int
    outputs: Sequence[str]
    pad_id: int
    eos_id: int
    masking: Masking | None = None

    def batch(self, parts: Sequence[Window], pieces: Pieces, shard_names: Sequence[str]) -> Batch:
        """The batch of all these rows.

        pieces       the pieces of the rows
        shard_names  by the shard numbers of the windows
        """
        # Columns that neither the batch nor another column needs are not written, and have no rows.
        written, count = {*_TOKENS, *self.outputs}, pieces.rows
        columns = {name: np.empty((count * (name in written), self.seq_len), np.int64) for name in COLUMNS}
        flat = tuple(column.reshape(-1) for column in columns.values())
        row = 0
        for part in parts:
            first, row = row, row + len(part)
            write(part.documents.ids, part.pieces, first, row, self.seq_len, self.eos_id, self.pad_id, flat)
        if self.masking is not None:
            keys = np.concatenate([part.row_keys for part in parts])
            used = np.bincount(np.repeat(np.arange(row), pieces.per_row), pieces.length, row)
            mask(columns["input_ids"], columns["labels"], keys, used.astype(np.int64), self.masking)
        tensors = {name: torch.from_numpy(columns[name]) for name in self.outputs if name in columns}
        if not {"cu_seqlens", "max_seqlen"}.isdisjoint(self.outputs):
            borders = segment_borders(pieces, self.seq_len)
            tensors["cu_seqlens"] = torch.from_numpy(borders.astype(np.int32))
            tensors["max_seqlen"] = torch.tensor(int(np.diff(borders).max(initial=0)), dtype=torch.int32)
        names = {shard: shard_names[shard] for shard in set(pieces.table[:, SHARD].tolist())}
        return Batch({name: tensors[name] for name in self.outputs}, pieces, names)


_int64 = types.int64
_columns = types.UniTuple(types.Array(types.int64, 1, "C"), 5)  # type: ignore[no-untyped-call]
_ids = types.Array(types.uint32, 1, "C", readonly=True)
_pieces = types.Array(types.int64, 2, "C", readonly=True)


@compiled(types.void(_columns, *[_int64] * 3))
def _pad(columns: tuple[Int64, ...], begin: int, end: int, pad_id: int) -> None:
    """Fill the places `begin` .. `end` of all columns that are written with padding."""
    if begin < end:
        for column, padding in zip(columns, (pad_id, IGNORED, 0, NO_DOCUMENT, NO_DOCUMENT)):  # noqa: B905 (numba)
            if len(column) > 0:
                column[begin:end] = padding


@compiled(types.void(_ids, _pieces, *[_int64] * 5, _columns))
def write(
    ids: npt.NDArray[np.uint32],
    pieces: Int64,
    row: int,
    end_row: int,
    seq_len: int,
    eos_id: int,
    pad_id: int,
    columns: tuple[Int64, ...],
) -> None:
    """Write the rows of a window, with padding, as the batch's rows `row` .. `end_row`.

    ids       as in `TokenizedDocuments`
    pieces    as in `Window`
    columns   `COLUMNS`, int64 [rows x seq_len], flat. All but the first two may be [0]: they are not written then
    """
    input_ids, labels, position_ids, doc_ids, subset_ids = columns
    at = row_begin = row * seq_len
    in_row = 0
    for piece in range(len(pieces)):
        from_text, end = pieces[piece, FROM_TEXT], at + pieces[piece, LENGTH]
        # Unsigned: a negative place would count from the end, and this test keeps a loop out of vectors.
        source, to, length = np.uint64(pieces[piece, SOURCE]), np.uint64(at), np.uint64(pieces[piece, LENGTH])
        for i in range(np.uint64(from_text)):
            token = np.int64(ids[source + i])
            input_ids[to + i] = token
            labels[to + i] = token
        if at + from_text < end:
            input_ids[end - 1] = eos_id
            labels[end - 1] = eos_id
        if pieces[piece, BEGIN] == 0 or at > row_begin:  # nothing before it in the row predicts it
            labels[at] = IGNORED
        if len(position_ids) > 0:
            for i in range(length):
                position_ids[to + i] = np.int64(i)
        if len(doc_ids) > 0:
            for i in range(length):
                doc_ids[to + i] = in_row
        if len(subset_ids) > 0:
            subset = pieces[piece, SUBSET]
            for i in range(length):
                subset_ids[to + i] = subset
        at, in_row = end, in_row + 1
        if pieces[piece, ENDS_ROW]:
            row_begin, in_row = row_begin + seq_len, 0
            _pad(columns, at, row_begin, pad_id)
            at = row_begin
    _pad(columns, at, end_row * seq_len, pad_id)


def segment_borders(pieces: Pieces, seq_len: int) -> Int64:
    """int64 [segments + 1]: where documents, paddings and rows begin in the flattened batch, and the batch's end."""
    rows = np.arange(len(pieces.per_row))
    ends = np.cumsum(pieces.length)
    before = np.concatenate(([0], ends))[np.cumsum(pieces.per_row) - pieces.per_row]  # tokens of all rows before each
    in_line = ends + np.repeat(rows * seq_len - before, pieces.per_row)
    return np.union1d(in_line, np.arange(len(rows) + 1) * seq_len)


def _narrowed(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """(values, the number subtracted from each): int64 in 16 or 32 bits if these suffice, other values as they are."""
    if values.dtype == np.int64 and values.size:
        least, most = int(values.min()), int(values.max())
        for narrow in (np.uint16, np.uint32):
            if most - least <= np.iinfo(narrow).max:
                return (values - least).astype(narrow), least
    return values, 0


def _unpickled(columns: Mapping[str, tuple[npt.NDArray[Any], int]], *identities: Any) -> Batch:
    tensors = {}
    for name, (values, least) in columns.items():
        if values.dtype in (np.uint16, np.uint32):
            values = values.astype(np.int64)
            values += least
        tensors[name] = torch.from_numpy(values)
    return Batch(tensors, *identities)
