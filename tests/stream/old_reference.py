"""Packing in file order in its plainest form, until the tests that use it know the lane grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pilekit.stream import Batch
from pilekit.stream.state import Place
from pilekit.tokenize import TokenBatch


@dataclass(frozen=True)
class Document:
    shard: str
    number: int
    subset: str
    ids: tuple[int, ...]


def reference_rows(
    documents: Iterable[Document], seq_len: int, eos_id: int, pad_id: int, names: Sequence[str] = ()
) -> list[dict[str, list[int] | list[tuple[str, int]]]]:
    """One dict per row: the five columns, and under "documents" the identities by doc_id."""
    names = list(names)
    tokens = []  # (token id, document, is it the document's first token)
    for document in documents:
        if document.subset not in names:
            names.append(document.subset)
        for place, token in enumerate([*document.ids, eos_id]):
            tokens.append((token, document, place == 0))
    rows = []
    for begin in range(0, len(tokens), seq_len):
        row = {
            "input_ids": [],
            "labels": [],
            "doc_ids": [],
            "position_ids": [],
            "subset_ids": [],
            "documents": [],
        }
        previous = None
        for token, document, is_first in tokens[begin : begin + seq_len]:
            if document is not previous:
                row["documents"].append((document.shard, document.number))
                position = 0
            previous = document
            row["input_ids"].append(token)
            row["labels"].append(-100 if is_first else token)
            row["doc_ids"].append(len(row["documents"]) - 1)
            row["position_ids"].append(position)
            row["subset_ids"].append(names.index(document.subset))
            position += 1
        while len(row["input_ids"]) < seq_len:
            row["input_ids"].append(pad_id)
            row["labels"].append(-100)
            row["doc_ids"].append(-1)
            row["position_ids"].append(0)
            row["subset_ids"].append(-1)
        rows.append(row)
    return rows


def rows_of(batches: Iterable[Batch]) -> list[dict[str, list[int] | list[tuple[str, int]]]]:
    """The rows of `batches` in the reference's form, with the shape and dtype of each tensor checked."""
    rows = []
    for batch in batches:
        documents = batch.documents()
        for column in batch.values():
            assert column.dtype == torch.int64
            assert column.is_contiguous()
            assert column.shape == (len(documents), next(iter(batch.values())).shape[1])
        columns = {name: column.tolist() for name, column in batch.items()}
        rows += [
            {name: column[index] for name, column in columns.items()} | {"documents": documents[index]}
            for index in range(len(documents))
        ]
    return rows


def token_batches(
    documents: Sequence[Document], sizes: Sequence[int] = (), start: Place | None = None
) -> Iterator[TokenBatch]:
    """`documents` as batches of `sizes` documents, over and over, none across a shard's end; from `start` on."""
    shards = list(dict.fromkeys(document.shard for document in documents))
    if start is not None:
        after = shards[shards.index(start.shard) + 1 :] if start.shard in shards else shards
        documents = [
            document
            for document in documents
            if document.shard in after or (document.shard == start.shard and document.number >= start.document)
        ]
    sizes = list(sizes) or [3]
    begin = turn = 0
    while begin < len(documents):
        shard = documents[begin].shard
        chosen = [
            document for document in documents[begin : begin + sizes[turn % len(sizes)]] if document.shard == shard
        ]
        begin += len(chosen)
        turn += 1
        flat = np.array([token for document in chosen for token in document.ids], dtype=np.uint32)
        flat.flags.writeable = False  # as the encoder's buffers are
        yield TokenBatch(
            flat,
            np.cumsum([0, *(len(document.ids) for document in chosen)], dtype=np.int64),
            shard,
            np.array([document.number for document in chosen], dtype=np.int64),
            [document.subset for document in chosen],
        )


def place_of(batch: Batch) -> Place:
    """The place after `batch`, from its JSON."""
    state = batch.stream_state
    return Place(state["shard"], state["document"], state["token"], tuple(state["new_subsets"]))
