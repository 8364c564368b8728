"""`Record`: the number of batches that a rank was handed, and the places of its lanes after them.

Each batch carries its changes to the record as one int64 array. The record takes them in when the batch is handed to
the training loop. So the record depends only on the batches handed out, however far workers have read ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import boolean, int64, types

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, shortened
from pilekit.stream.pack.window import BEGIN, LENGTH
from pilekit.stream.read.lane_documents import SKIPPED, SUBSET
from pilekit.workers.kernels import compiled

# A batch's state begins with its number, its counts of lanes, rows and bad lines, and how long a place is. The number
# and the place of each lane, and 3 numbers for each subset, follow.
_HEAD = 5


class WorkerPart(NamedTuple):
    """A worker's batches of an iteration: first + worker, first + worker + workers, ... `given_batches` were given."""

    worker: int = 0
    workers: int = 1
    given_batches: int = 0

    def resumed(self, loaded: tuple[int, int, int]) -> WorkerPart:
        """This worker's part from the state that was loaded into it; PilekitError if it is another worker's state."""
        if loaded[:2] != (self.worker, self.workers):
            raise PilekitError(
                f"the state is that of another worker, {shortened(repr(loaded), 80)}, and was given to worker "
                f"{self.worker} of {self.workers}; use the num_workers it was taken with, or stream.loader(), whose "
                "state fits any"
            )
        return self._replace(given_batches=loaded[2])

    def numbers(self, first: int) -> range:
        """The numbers of the batches that are left; it is as good as endless."""
        return range(first + self.worker, 1 << 62, self.workers)[self.given_batches :]


_any_numbers = types.Array(int64, 1, "A", readonly=True)


@compiled(int64[::1](int64, _any_numbers, int64[:, ::1], int64, int64[:, ::1], boolean))
def batch_state(number: int, lanes: Int64, places: Int64, rows: int, pieces: Int64, counts_tokens: bool) -> Int64:
    """A batch's changes to the record, as one int64 array: its `stream_state`.

    number          of the batch in its rank, from 0
    lanes, places   int64 [k], [k, n]: the lanes it read, and their places after it
    rows            rows made
    pieces          the pieces of these rows, as in `Window`: bad lines skipped before them, and for each subset the
                    documents that begin in the batch and the tokens in it
    counts_tokens   False: no tokens are counted
    """
    subsets = 0
    for piece in range(len(pieces)):
        subsets = max(subsets, pieces[piece, SUBSET] + 1)
    counts, skipped = np.zeros((subsets, 2), np.int64), 0
    for piece in range(len(pieces)):
        subset = pieces[piece, SUBSET]
        if pieces[piece, BEGIN] == 0:
            counts[subset, 0] += 1
            skipped += pieces[piece, SKIPPED]
        if counts_tokens:
            counts[subset, 1] += pieces[piece, LENGTH]
    used = 0
    for subset in range(subsets):
        used += counts[subset, 0] + counts[subset, 1] > 0
    lane_count, width = places.shape
    state = np.empty(_HEAD + (1 + width) * lane_count + 3 * used, np.int64)
    state[0], state[1], state[2], state[3], state[4] = number, lane_count, rows, skipped, width
    at = _HEAD
    for lane in range(lane_count):
        state[at] = lanes[lane]
        for i in range(width):
            state[at + 1 + i] = places[lane, i]
        at += 1 + width
    for subset in range(subsets):
        if counts[subset, 0] + counts[subset, 1] > 0:
            state[at], state[at + 1], state[at + 2] = subset, counts[subset, 0], counts[subset, 1]
            at += 3
    return state


@compiled(boolean(_any_numbers, int64[:, ::1], int64[:, ::1]))
def _take(state: Int64, places: Int64, subsets: Int64) -> bool:
    """Take in a batch's places and counts; False, with nothing changed, if they do not fit the record."""
    lanes, width = state[1], 1 + state[4]
    if not 0 <= lanes <= len(state) or width != 1 + places.shape[1]:
        return False
    middle = _HEAD + width * lanes
    if middle > len(state) or (len(state) - middle) % 3:
        return False
    for at in range(_HEAD, middle, width):
        if not 0 <= state[at] < len(places):
            return False
    for at in range(middle, len(state), 3):
        if not 0 <= state[at] < len(subsets):
            return False
    for at in range(_HEAD, middle, width):
        for i in range(places.shape[1]):
            places[state[at], i] = state[at + 1 + i]
    for at in range(middle, len(state), 3):
        for i in range(2):
            subsets[state[at], i] += state[at + 1 + i]
    return True


def state_of(item: Any) -> Int64:
    """The `stream_state` of a stream's item; PilekitError if it has none."""
    state = item.get("stream_state") if isinstance(item, Mapping) else getattr(item, "stream_state", None)
    if isinstance(state, torch.Tensor):
        state = (state if state.is_cpu else state.cpu()).numpy()
    if not isinstance(state, np.ndarray) or state.dtype != np.int64 or state.ndim != 1 or len(state) < _HEAD:
        raise PilekitError(
            "advance() needs a batch as the loader gave it, with its stream_state; call it once for each batch, before "
            "converting it. A stock DataLoader loses the state of single documents, unless it is given "
            "collate_fn=lambda document: document; stream.loader() keeps it"
        )
    return state


@dataclass
class Record:
    """The places of all lanes, the number of batches handed to a rank, and the rank's counts for `stats`.

    places   int64 [L, n]; n is 3, or more in lanes that draw from several sequences
    batch    batches handed out since the start of the run; also the number of the next batch
    subsets  int64 [subsets, 2]: this rank's documents and tokens, by subset id
    rows, skipped   of this rank
    """

    places: Int64
    batch: int
    subsets: Int64
    rows: int = 0
    skipped: int = 0

    def copy(self) -> Record:
        """A record that shares nothing with this one."""
        return replace(self, places=self.places.copy(), subsets=self.subsets.copy())

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
        """Take in a batch's changes without counting the batch; PilekitError if they are those of another stream."""
        if not _take(state, self.places, self.subsets):
            raise PilekitError("advance() was given a batch of another stream, which has other lanes or subsets")
        self.rows += int(state[2])
        self.skipped += int(state[3])

    def by_subset(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """(documents, tokens) of each subset; subsets without either are left out."""
        counts = zip(names, self.subsets.tolist(), strict=True)
        return {name: (documents, tokens) for name, (documents, tokens) in counts if documents or tokens}

    def stats(self, names: Sequence[str], seq_len: int) -> dict[str, Any]:
        """The counts that `PileStream.stats` returns."""
        documents, tokens = self.subsets.sum(axis=0).tolist()
        counts = self.by_subset(names).items()
        return {
            "rows": self.rows,
            "documents": documents,
            "tokens": tokens,
            "fill": tokens / (self.rows * seq_len) if self.rows else 0.0,
            "padding": 1 - tokens / (self.rows * seq_len) if self.rows else 0.0,
            "skipped": self.skipped,
            "subsets": {name: dict(zip(("documents", "tokens"), count, strict=True)) for name, count in counts},
        }
