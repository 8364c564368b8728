"""`Tokenize`, the last stage of a document pipeline, and the `TokenBatch` that it yields.

Each batch is one encoder call, because a Python loop over documents would cost more than the encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pilekit.display.wrong_names import NearestNames
from pilekit.documents import DocumentBatch
from pilekit.tokenize.loading import load_tokenizer
from pilekit.tokenize.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenBatch(NearestNames):
    """The tokens of some documents of one shard, as parallel columns, without EODs.

    ids       uint32 [tokens], all documents one after another
    offsets   int64 [documents + 1], from 0; document i is `ids[offsets[i]:offsets[i + 1]]`
    shard     the shard's name, e.g. `train/00.jsonl`
    numbers   int64 [documents], increasing; the line number of each document from 0
    subsets   list of str, [documents]; `(none)` for a document without a label
    """

    ids: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]
    shard: str
    numbers: npt.NDArray[np.int64]
    subsets: list[str]

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, init=False)
class Tokenize(NearestNames):
    """Turn each `DocumentBatch` into the `TokenBatch` of the same documents; empty batches are dropped.

    tokenizer   a `Tokenizer`, or an argument of `load_tokenizer`

    A document with an empty text stays, without ids.
    """

    tokenizer: Tokenizer

    def __init__(self, tokenizer: Tokenizer | str | Path) -> None:
        loaded = load_tokenizer(tokenizer)
        object.__setattr__(self, "tokenizer", loaded)

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[TokenBatch]:
        """Encode lazily: one token batch for each batch of documents."""
        for batch in batches:
            if len(batch):
                yield self.encode(batch)

    def encode(self, batch: DocumentBatch) -> TokenBatch:
        """The tokens of one batch."""
        ids, offsets = self.tokenizer.encode_batch(batch.texts)
        return TokenBatch(ids, offsets, batch.shard, batch.numbers, batch.subsets)
