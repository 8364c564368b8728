"""`Pack`: the stage from token batches to batches of packed rows, for pipelines without a `PileStream`.

It is one `Lane` over the token batches. Rows go into batches in the windows' order, and each batch is yielded as soon
as it is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np

from pilekit.display.wrong_names import NearestNames
from pilekit.documents import check_labels
from pilekit.stream.arguments import check_number, check_one_of
from pilekit.stream.batch.batch import DEFAULT_OUTPUTS, Batch, BatchWriter, checked_outputs
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.pack.lane import Lane
from pilekit.stream.pack.window import PACKINGS, Layout, Packing, Place, TokenizedDocuments, Turns, pieces_of
from pilekit.stream.read.lane_documents import document_table
from pilekit.tokenize import TokenBatch


@dataclass(frozen=True)
class Pack(NearestNames):
    """Pack documents, each followed by `eos_id`, into rows.

    seq_len        tokens in a row
    eos_id         the token that ends each document; a document without tokens is this token alone
    packing        "best_fit": a document is cut only if it is longer than a row; "concat": documents follow one
                   another, and are cut at the row's edge; "none": one document a row, rows of like
                   length in a batch; documents of one token, EOD counted, are left out
    window         how many documents are packed together (best_fit, none)
    batch_size     rows in a batch; the last batch may have fewer
    pad_id         fills the free end of a row; `eos_id` by default
    append_eod     False: no EOD follows a document, and documents without tokens are left out
    outputs        the tensors of a batch, see `Batch`
    masking        for masked-language modelling: which tokens can be chosen, and their replacements
    subset_names   subset ids are indices into these names; other labels get the next ids, in order of appearance
    seed           of the rows' order and of the masks

    PilekitError for invalid arguments, and for more than `MAX_SUBSETS` other labels.
    """

    seq_len: int
    eos_id: int
    _: KW_ONLY
    packing: Packing = "best_fit"
    window: int = 256
    batch_size: int = 8
    pad_id: int | None = None
    append_eod: bool = True
    outputs: tuple[str, ...] = DEFAULT_OUTPUTS
    masking: Masking | None = None
    subset_names: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("seq_len", 1), ("batch_size", 1), ("window", 1), ("eos_id", 0)):
            check_number(name, getattr(self, name), least)
        check_one_of("packing", self.packing, PACKINGS)
        object.__setattr__(self, "outputs", checked_outputs(self.outputs))

    def __call__(self, batches: Iterator[TokenBatch]) -> Iterator[Batch]:
        """Pack all tokens of `batches`."""
        subset_ids = {name: index for index, name in enumerate(self.subset_names)}
        shards: dict[str, int] = {}
        layout = Layout(self.seq_len, self.packing, self.window, self.append_eod, self.seed)
        documents = _documents(batches, subset_ids, shards)
        lane = Lane(documents, 0, Place(0, 0), layout, Turns(0, self.batch_size))
        pad_id = self.eos_id if self.pad_id is None else self.pad_id
        writer = BatchWriter(self.seq_len, self.outputs, pad_id, self.eos_id, self.masking)
        while rows := lane.give(self.batch_size):
            yield writer.batch(rows, pieces_of(rows), list(shards))


def _documents(
    batches: Iterator[TokenBatch], subset_ids: dict[str, int], shards: dict[str, int]
) -> Iterator[TokenizedDocuments]:
    """The documents of token batches, in a lane's form. Each batch is one position; new names get the next ids."""
    known = len(subset_ids)
    for position, batch in enumerate(batches):
        count = len(batch)
        subsets = [subset_ids.setdefault(name, len(subset_ids)) for name in batch.subsets]
        check_labels(subset_ids, known)
        table = document_table(
            count,
            position=position,
            order=np.arange(count),
            shard=shards.setdefault(batch.shard, len(shards)),
            number=batch.numbers,
            subset=subsets,
        )
        yield TokenizedDocuments(batch.ids, batch.offsets, table)
