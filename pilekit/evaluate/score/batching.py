"""Windows of documents, passed through a model in batches of similar length.

    documents -> their windows, held until they fill a look-ahead
              -> batches of similar length, the longest first
              -> one forward pass for each batch -> every document as soon as its last window has passed

A pass gives some numbers for each row of a batch: losses, or a vector. `causal_nll.py`, `pseudo_nll.py` and
`embed_corpus.py` make a `Scoring`, which says what the windows of a document are and what a pass computes. Memory does
not grow with the corpus: at most the look-ahead is held. `Fitting` makes a forward pass smaller if memory does not hold
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pilekit.errors import PilekitError, counted, is_out_of_memory, message_logger, shortened
from pilekit.evaluate.results.records import ScoredDocument

logger = message_logger(__name__)

Float64 = npt.NDArray[np.float64]

BATCH_TOKENS = 4096
"""A token of `pythia-14m` takes one CPU core 270-280 us with 2,048 or 4,096 tokens in a batch, 300 with 8,192, 330 with
32,768: larger batches exceed the cache, and pad more. Head and softmax take four fifths of the time."""
BATCH_TOKENS_ON_GPU = 32_768
"""A guess, not measured: enough that the GPU takes longer than Python takes to launch its kernels."""
CHUNK_BYTES = 24 << 20
"""Logits held at a time: 125 rows of a vocabulary of 50,304. A token takes 370 us with 6 MiB, 310 with 12, 280 with 24,
and 390 with 48 or more: from 32 MiB on the C library returns the memory to the system at once, and each chunk requests
it again."""
CHUNK_BYTES_ON_GPU = 256 << 20
"""A guess: fewer, larger kernels; not measured."""
OBJECT_TOKENS = 16
"""A window's weight is its inputs plus this, so that empty windows are limited too."""


@dataclass(slots=True, eq=False)
class TokenizedDocument:
    """A document to be scored, and the numbers of its rows that are scored so far.

    shard, number   its place in the corpus
    text            xxh3_64 of its raw text's UTF-8; identifies the document together with `shard` and `number`
    subset          its label
    bytes           UTF-8 bytes of its raw text
    ids             uint32 [tokens], without special tokens
    tokens          tokens predicted in its rows so far
    rows            rows that are not scored yet
    complete        whether it has no further rows
    parts           the weight and the numbers of each scored row, by window and place
    """

    shard: str
    number: int
    text: int
    subset: str
    bytes: int
    ids: npt.NDArray[np.uint32] = field(repr=False)
    tokens: int = field(default=0, init=False)
    rows: int = field(default=0, init=False)
    complete: bool = field(default=False, init=False)
    parts: dict[tuple[int, int], tuple[float, Float64]] = field(default_factory=dict, init=False, repr=False)

    def numbers(self) -> Float64:
        """float64: the numbers of all rows in the order of the text, which are losses or a vector."""
        return np.concatenate([np.empty(0), *(numbers for _, (_, numbers) in sorted(self.parts.items()))])

    def nll(self) -> float:
        """The exact sum of all losses times their weights."""
        return math.fsum(chain.from_iterable((weight * losses).tolist() for weight, losses in self.parts.values()))

    def record(self, nll: float) -> ScoredDocument:
        """The record of the document with this negative log-likelihood."""
        return ScoredDocument(self.shard, self.number, self.text, self.subset, self.bytes, self.tokens, nll)


class Row(NamedTuple):
    """One row of a forward pass.

    ids        token ids of the window
    length     number of the model's inputs
    tokens     number of the document's tokens that count as scored with this row
    window     place of the window in the document
    place      the masked place, for a masked model
    weight     factor of the losses in the document's negative log-likelihood
    """

    document: TokenizedDocument
    ids: npt.NDArray[np.unsignedinteger | np.signedinteger]
    length: int
    tokens: int
    window: int = 0
    place: int = 0
    weight: float = 1.0


Windows = list[Row]
"""A batch of rows of similar length."""
Forward = Callable[[Windows], list[Float64]]
"""One forward pass: the numbers of each row of a batch, float64 [numbers of the row]."""
Passes = Callable[[Sequence[Windows], Forward], Iterable[list[Float64]]]
"""Makes the forward passes of all batches, and returns their numbers in order."""


class Fitting:
    """The `Passes` of one process, which makes a pass in parts if its batch does not fit into memory.

    The memory of a pass grows with its inputs, and the first batch has the longest rows, so a batch size that is too
    large fails at once. A batch that does not fit is halved until its first part fits. Its other rows, and all later
    batches, are then scored in parts of that size. The only cost is the failed passes, once. No figure changes, because
    each row has its own numbers.
    """

    def __init__(self) -> None:
        self._most: int | None = None  # inputs of a pass, padding counted; None: every batch has fitted so far
        self._warned = False

    def __call__(self, batches: Sequence[Windows], forward: Forward) -> Iterator[list[Float64]]:
        """Yield the numbers of each batch, in order. Raises an error of `forward`, unless fewer rows may help."""
        for batch in batches:
            numbers: list[Float64] = []
            while len(numbers) < len(batch):
                longest = batch[len(numbers)].length
                rows = len(batch) if self._most is None else max(1, self._most // longest)
                part = batch[len(numbers) : len(numbers) + rows]
                fitting = _numbers_if_fitting(part, forward)
                if fitting is None:
                    self._most = len(part) // 2 * longest
                    continue
                numbers += fitting
                if self._most is not None and not self._warned:
                    self._warned = True
                    logger.warning(
                        "memory does not hold a forward pass over %s tokens; continuing with at most %s in each",
                        f"{len(batch) * batch[0].length:,}",
                        f"{self._most:,}",
                    )
            yield numbers


def _numbers_if_fitting(part: Windows, forward: Forward) -> list[Float64] | None:
    """The numbers of a part's rows; None if it has several rows that do not fit into memory."""
    try:
        return forward(part)
    except PilekitError as error:
        if len(part) == 1 or not is_out_of_memory(error.__cause__):
            raise
    # Leaving the handler frees the error and its traceback, which holds all tensors of the failed pass.
    return None


@dataclass(frozen=True, slots=True)
class Scoring:
    """How documents pass through a model.

    windows_of   the rows of each window of a document
    numbers_of   one forward pass of the model
    most_rows    the most rows of a given length in a batch; a batch has at least one row
    mixed        whether a batch may hold rows of different lengths, the shorter ones padded
    look_ahead   windows of this many inputs are sorted by length together
    noun         the word for a number, in messages
    passes       makes the forward passes: in this process, or shared by several
    """

    windows_of: Callable[[TokenizedDocument], Iterator[list[Row]]]
    numbers_of: Forward
    most_rows: Callable[[int], int]
    mixed: bool
    look_ahead: int
    noun: str = "loss"
    passes: Passes = field(default_factory=Fitting)


class ScoredBatch(NamedTuple):
    """The number of `tokens` that a batch scored, and the `documents` whose last row was in it."""

    tokens: int
    documents: list[TokenizedDocument]


def usual_batch_tokens(device: torch.device) -> int:
    """The default number of inputs in a batch."""
    return BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ON_GPU


def chunk_rows(device: torch.device, vocabulary: int, chunk_bytes: int | None = None) -> int:
    """The number of rows of logits that are made at a time, in `chunk_bytes` (None: the device's default)."""
    return max(1, (chunk_bytes or (CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES_ON_GPU)) // (4 * vocabulary))


def batches(rows: Iterable[Row], scoring: Scoring) -> Iterator[Windows]:
    """Rows in batches of similar length, the longest first, so that a batch too large for memory fails at once."""
    batch: Windows = []
    for row in sorted(rows, key=lambda row: row.length, reverse=True):
        like = scoring.mixed or not batch or row.length == batch[0].length
        if batch and (len(batch) >= scoring.most_rows(batch[0].length) or not like):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def score_rows(documents: Iterable[TokenizedDocument], scoring: Scoring) -> Iterator[ScoredBatch]:
    """Score documents in batches, and yield each document as soon as its last row is scored.

    Documents of one look-ahead change their order. PilekitError, with the document's name, for a number that is not
    finite and for an error of the model.
    """

    def forward(batch: Windows) -> list[Float64]:
        try:
            return scoring.numbers_of(batch)
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            raise _failed(batch, error) from error

    def score(rows: Windows) -> Iterator[ScoredBatch]:
        all_batches = list(batches(rows, scoring))
        for batch, numbers_of_rows in zip(all_batches, scoring.passes(all_batches, forward), strict=True):
            for row, numbers in zip(batch, numbers_of_rows, strict=True):
                if not np.isfinite(numbers).all():
                    bad = numbers[~np.isfinite(numbers)][0]
                    raise PilekitError(
                        f"{_name_of(row)}: the model's {scoring.noun} is {bad}, not a finite number; its weights are "
                        "damaged, or too large for the precision it computes in; copy the model again"
                    )
                row.document.parts[row.window, row.place] = row.weight, numbers
                row.document.rows -= 1
            ended = dict.fromkeys(row.document for row in batch if row.document.complete and not row.document.rows)
            yield ScoredBatch(sum(row.tokens for row in batch), list(ended))

    waiting: Windows = []
    weight = 0
    for document in documents:
        for rows in scoring.windows_of(document):
            if weight >= scoring.look_ahead:
                yield from score(waiting)
                waiting, weight = [], 0
            waiting += rows
            document.rows += len(rows)
            document.tokens += sum(row.tokens for row in rows)
            weight += OBJECT_TOKENS + sum(row.length for row in rows)
        document.complete = True
        if not document.rows:
            yield ScoredBatch(0, [document])
    yield from score(waiting)


def _failed(batch: Windows, error: Exception) -> PilekitError:
    """The error of a forward pass, in one line that names the document of its longest row."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason, length = shortened(lines[0], 200), batch[0].length
    if is_out_of_memory(error):
        many = "a window" if len(batch) == 1 else f"{len(batch):,} windows"
        return PilekitError(
            f"{_name_of(batch[0])}: memory does not hold a forward pass over {many} of {counted(length, 'token')} "
            f"({reason}); give a smaller --max-length, or --dtype bf16"
        )
    return PilekitError(
        f"{_name_of(batch[0])}: the model fails at a window of {counted(length, 'token')} ({reason}); give a "
        "smaller --max-length"
    )


def _name_of(row: Row) -> str:
    document = row.document
    return f"{shortened(document.shard, 200)}, document {document.number} ({shortened(document.subset, 80)})"
