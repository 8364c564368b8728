"""The plain reference for packing, masking and attention masks, token by token; it uses the stream's reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pilekit.corpus.shuffle import mix
from pilekit.stream.batch.batch import OUTPUTS, Batch
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.pack.pack_stage import Pack
from pilekit.tokenize import TokenBatch
from tests.stream.reference import Document, Line, Plan, Row

EOS, PAD = 7, 9
NAMES = ("Pile-CC", "Github", "Books")


def plan(seq_len: int, packing: Any = "best_fit", window: int = 256, seed: int = 0, batch_size: int = 8) -> Plan:
    """One lane."""
    return Plan((), 1, 1, batch_size, seq_len, seed=seed, window=window, packing=packing)


def documents_of(lengths: Sequence[int], sizes: Sequence[int] = (3,), append_eod: bool = True) -> list[Document]:
    """Documents of `lengths` tokens without EOD, all tokens different, in batches whose sizes cycle through `sizes`.

    A document's position is the number of its batch, its order its place there. Every third batch begins a new shard.
    """
    documents, token, position, order, number = [], 10, 0, 0, 0
    for index, length in enumerate(lengths):
        if order == sizes[position % len(sizes)]:
            position, order = position + 1, 0
            number = 0 if position % 3 == 0 else number
        line = Line(f"{position // 3:02d}.jsonl", number, NAMES[index % 5 % 3], "")
        tokens = [*range(token, token + length), *[EOS] * append_eod]
        documents.append(Document(0, position, order, line, tokens))
        token, order, number = token + length, order + 1, number + 1 + index % 2
    return documents


def token_batches(documents: Sequence[Document], append_eod: bool = True) -> Iterator[TokenBatch]:
    """The batches of `documents_of`."""
    for position in range(1 + max((document.position for document in documents), default=-1)):
        chosen = [document for document in documents if document.position == position]
        texts = [document.tokens[:-1] if append_eod else document.tokens for document in chosen]
        flat = np.array([token for text in texts for token in text], dtype=np.uint32)
        flat.flags.writeable = False  # as the encoder's buffers are
        yield TokenBatch(
            flat,
            np.cumsum([0, *map(len, texts)], dtype=np.int64),
            chosen[0].line.shard,
            np.array([document.line.number for document in chosen], dtype=np.int64),
            [document.line.subset for document in chosen],
        )


def masked(row: Row, key: int, masking: Masking) -> tuple[list[int], list[int]]:
    """(input_ids, labels) of a row for masked-language modelling, from the hashes."""
    special = {masking.mask_id, *masking.special_ids}
    ordinary = [token for token in range(masking.vocab_size) if token not in special]
    input_ids, labels = list(row.input_ids), [-100] * len(row.input_ids)
    for place, token in enumerate(row.input_ids):
        high, low = divmod(int(mix(key, place)), 2**32)
        if row.doc_ids[place] == -1 or token in special or high >= int(0.15 * 2**32):
            continue
        labels[place] = token
        if low < int(0.8 * 2**32):
            input_ids[place] = masking.mask_id
        elif low < int(0.9 * 2**32):
            input_ids[place] = ordinary[(int(mix(key, place, 0)) >> 32) * len(ordinary) >> 32]
    return input_ids, labels


def attends(row: Row, causal: bool) -> list[list[bool]]:
    """[query][key]: a token attends to its document, a pad to itself."""
    return [
        [
            query == key or (document != -1 and row.doc_ids[key] == document and (key < query or not causal))
            for key in range(len(row.doc_ids))
        ]
        for query, document in enumerate(row.doc_ids)
    ]


lengths = st.lists(st.integers(0, 12) | st.sampled_from([0, 1, 2, 15, 16, 17, 31, 32, 40]), min_size=1, max_size=40)
"""Of documents without EOD, for rows of 1 to 40 tokens."""


def packed(lengths: Sequence[int], seq_len: int, packing: Any = "best_fit", **options: Any) -> Batch:
    """Documents of these lengths in rows; all rows are one batch."""
    options = {"batch_size": 10_000, "pad_id": PAD, "outputs": OUTPUTS, "subset_names": NAMES, **options}
    (batch,) = Pack(seq_len, EOS, packing=packing, **options)(token_batches(documents_of(lengths)))
    return batch
