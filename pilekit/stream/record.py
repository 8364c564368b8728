"""`Record`: the batches that a rank was handed, and where its lanes stand behind them.

Each batch carries what it changes, one int64 array, and the record takes it in when the batch is handed to the training
loop. So the record is a function of the batches handed out and of nothing else, whatever workers have read ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pilekit.errors import PilekitError
from pilekit.stream.order.shuffle import Int64

HEAD = 4  # of a batch's state: its number, lanes, rows, bad lines; then 4 for each lane, 3 for each subset


def batch_state(
    number: int, lanes: Int64, places: Int64, rows: int, skipped: int, subsets: Int64, documents: Int64, tokens: Int64
) -> Int64:
    """What a batch changes, as one int64 array: to be its `stream_state`.

    number          of the batch among those of its rank, from 0
    lanes, places   int64 [k], [k, 3]: the lanes it read, and where they stand after it
    rows, skipped   rows made, and bad lines passed over for them
    subsets, documents, tokens   int64 [n]: how many documents begin in it and how many tokens it has, by subset id
    """
    changed = np.concatenate((lanes[:, None], places), axis=1)
    counted = np.stack((subsets, documents, tokens), axis=1)
    return np.concatenate(([number, len(lanes), rows, skipped], changed.ravel(), counted.ravel())).astype(np.int64)


def state_of(item: Any) -> Int64:
    """The state that an item of a stream carries, a dict of tensors or documents; PilekitError where it lacks one."""
    state = item.get("stream_state") if isinstance(item, Mapping) else getattr(item, "stream_state", None)
    if isinstance(state, torch.Tensor):
        state = state.cpu().numpy()
    if not isinstance(state, np.ndarray) or state.dtype != np.int64 or state.ndim != 1 or len(state) < HEAD:
        raise PilekitError(
            "advance() needs a batch as the loader gave it, with its stream_state; call it once for each batch, before "
            "converting it. Of single documents a stock DataLoader loses it, unless it is given collate_fn=lambda "
            "document: document; stream.loader() keeps it"
        )
    return state


def taken_state(item: Any) -> Int64:
    """The same, taken out of the item."""
    state = state_of(item)
    if isinstance(item, dict):
        del item["stream_state"]
    else:
        item.stream_state = None
    return state


@dataclass
class Record:
    """What a rank has been handed: the lanes' places, its number of batches, and counts for `stats`.

    places      int64 [L, 3]
    batch       batches handed out since the start of the run; the number of the next one
    documents, tokens   int64 [subsets]: of this rank, by subset id
    rows, skipped       of this rank
    """

    places: Int64
    batch: int
    documents: Int64
    tokens: Int64
    rows: int = 0
    skipped: int = 0

    @classmethod
    def of(
        cls, places: Int64, batch: int, counts: Mapping[str, Any], subset_ids: Mapping[str, int], other: int
    ) -> Record:
        """A state's record; counts of subsets that `subset_ids` lacks go to `other`."""
        counted = np.zeros((2, len(subset_ids)), np.int64)
        for name, pair in counts["subsets"].items():
            counted[:, subset_ids.get(name, other)] += pair
        return cls(places, batch, counted[0].copy(), counted[1].copy(), counts["rows"], counts["skipped"])

    def copy(self) -> Record:
        """A record that shares nothing with this one."""
        return Record(
            *(self.places.copy(), self.batch, self.documents.copy(), self.tokens.copy(), self.rows, self.skipped)
        )

    def add(self, state: Int64) -> None:
        """Take in a batch's state; PilekitError if it is not the next batch's."""
        if (number := int(state[0])) != self.batch:
            raise PilekitError(
                f"advance() was given batch {number} of this run, but batch {self.batch} is the next one to record; "
                "give it every batch once, in the order in which the loader gives them"
            )
        self.take(state)
        self.batch += 1

    def take(self, state: Int64) -> None:
        """Take in what a batch changed, without counting it."""
        lanes, rows, skipped = state[1:HEAD].tolist()
        changed = state[HEAD : HEAD + 4 * lanes].reshape(-1, 4)
        counted = state[HEAD + 4 * lanes :].reshape(-1, 3)
        self.places[changed[:, 0]] = changed[:, 1:]
        self.documents[counted[:, 0]] += counted[:, 1]
        self.tokens[counted[:, 0]] += counted[:, 2]
        self.rows += rows
        self.skipped += skipped

    def stats(self, names: Sequence[str], seq_len: int) -> dict[str, Any]:
        """What `PileStream.stats` says of this record."""
        tokens = int(self.tokens.sum())
        used = np.flatnonzero(self.documents | self.tokens).tolist()
        return {
            "rows": self.rows,
            "documents": int(self.documents.sum()),
            "tokens": tokens,
            "fill": tokens / (self.rows * seq_len) if self.rows else 0.0,
            "skipped": self.skipped,
            "subsets": {names[i]: {"documents": int(self.documents[i]), "tokens": int(self.tokens[i])} for i in used},
        }
