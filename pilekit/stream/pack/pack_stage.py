"""`Pack`: the stage from token batches to batches of packed rows, for pipelines without a `PileStream`.

It is one `Lane` over the token batches. Rows go into batches in the windows' order, and each batch is yielded as soon
as it is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np

from pilekit.artifacts.checked import checked
from pilekit.artifacts.settings import Count, FromZero
from pilekit.display.wrong_names import NearestNames
from pilekit.documents import check_labels
from pilekit.stream.batch.batch import Batch, BatchWriter, checked_outputs
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.pack.lane import Lane
from pilekit.stream.pack.lane_windows import windows
from pilekit.stream.pack.window import Layout, Place, TokenizedDocuments, Turns, pieces_of
from pilekit.stream.read.lane_documents import document_table
from pilekit.stream.settings import DEFAULT_OUTPUTS, Packing
from pilekit.tokenize import TokenBatch


@dataclass(frozen=True)
class Pack(NearestNames):
    """Pack documents, each followed by `eos_id`, into rows.

    seq_len        as in `PileStream`
    eos_id         the token that ends each document; a document without tokens is this token alone
    packing        as in `PileStream`; with "none" the rows of a batch have like lengths, and documents of one token,
                   EOD counted, are left out
    window         as in `PileStream`
    batch_size     rows in a batch; the last batch may have fewer
    pad_id         fills the free end of a row; `eos_id` by default
    append_eod     False: no EOD follows a document, and documents without tokens are left out
    outputs        as in `PileStream`
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
        for name, kind in (("seq_len", Count), ("batch_size", Count), ("window", Count), ("eos_id", FromZero)):
            checked(getattr(self, name), kind, name)
        checked(self.packing, Packing, "packing")
        object.__setattr__(self, "outputs", checked_outputs(self.outputs))

    def __call__(self, batches: Iterator[TokenBatch]) -> Iterator[Batch]:
        """Pack all tokens of `batches`."""
        subset_ids = {name: index for index, name in enumerate(self.subset_names)}
        shards: dict[str, int] = {}
        layout = Layout(self.seq_len, self.packing, self.window, self.append_eod, self.seed)
        documents = _documents(batches, subset_ids, shards)
        begin = Place(0, 0)
        lane = Lane(windows(documents, 0, begin, layout, Turns(0, self.batch_size)), begin, layout)
        pad_id = self.eos_id if self.pad_id is None else self.pad_id
        writer = BatchWriter(self.seq_len, self.outputs, pad_id, self.eos_id, self.masking)
        while rows := lane.give(self.batch_size):
            yield writer.batch(rows, pieces_of(rows), list(shards))


def _documents(
    batches: Iterator[TokenBatch], subset_ids: dict[str, int], shards: dict[str, int]
) -> Iterator[TokenizedDocuments]:
    """The documents of token batches, in a lane's form. Each batch is one position; new names get the next ids."""
    named_subsets = len(subset_ids)
    for position, batch in enumerate(batches):
        count = len(batch)
        subsets = [subset_ids.setdefault(name, len(subset_ids)) for name in batch.subsets]
        check_labels(subset_ids, named_subsets)
        table = document_table(
            count,
            position=position,
            order=np.arange(count),
            shard=shards.setdefault(batch.shard, len(shards)),
            number=batch.numbers,
            subset=subsets,
        )
        yield TokenizedDocuments(batch.ids, batch.offsets, table)
