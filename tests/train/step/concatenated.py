"""Documents one after another in rows, token by token: batches for tests of the losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
