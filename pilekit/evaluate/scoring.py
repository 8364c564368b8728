"""Negative log-likelihoods of documents: windows of like length in one batch, logits only where a token is scored.

    documents -> their windows, held until they have LOOK_AHEAD tokens -> batches of like length, the longest first
              -> the trunk once -> head and cross entropy in chunks of rows -> sums in float64 -> documents, in order

Batching changes no figure: windows are padded on the right, where a causal model does not look, and every window has a
sum of its own. Memory grows neither with the corpus nor, but for its own tokens, with a document: what is held is the
look-ahead, the hidden states of one batch and one chunk of logits, in float32 whatever the model computes in. Only a
model whose logits are more than its head's output (`head_is_last` False) has those of a whole batch made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from pilekit.errors import PilekitError, visible
from pilekit.evaluate.causal_lm import CausalLM, depends_on_length
from pilekit.evaluate.windows import Window, windows

BATCH_TOKENS = 4096
"""A token of `pythia-14m` takes one CPU core 270-280 us with 2,048 or 4,096 tokens in a batch, 300 with 8,192, 330 with
32,768: larger batches leave the cache, and pad more. Four fifths of it are the head and its softmax."""
LOOK_AHEAD = 1 << 20
"""Of 1,068 documents of 22 subsets, 4,096 tokens in a batch and windows of 2,048, 0.7 % of the computed tokens are
padding; 2.2 % with a quarter of this look-ahead, 12 % with 1 / 64."""
CHUNK_BYTES = 24 << 20
"""Logits held at a time: 125 rows of a vocabulary of 50,304. A token takes 370 us with 6 MiB, 310 with 12, 280 with 24,
and 390 with 48 or more: from 32 MiB on the C library gives memory back at once, and each chunk asks for it anew."""
CHUNK_BYTES_ON_GPU = 256 << 20
"""A guess: fewer, larger kernels; not measured."""
OBJECT_TOKENS = 16
"""What a document or window costs besides its tokens, in tokens: a million empty texts must not be held either."""


@dataclass(frozen=True, slots=True)
class TokenizedDocument:
    """A document to be scored.

    shard, number   its identity
    subset          its label
    bytes           UTF-8 bytes of its raw text
    ids             uint32 [tokens], no special token added
    """

    shard: str
    number: int
    subset: str
    bytes: int
    ids: npt.NDArray[np.uint32] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """A document that was scored: `tokens` is how many were predicted, `nll` the sum over them in nats."""

    shard: str
    number: int
    subset: str
    bytes: int
    tokens: int
    nll: float


@dataclass(slots=True)
class _Open:
    """A document whose windows are being scored; `sequence` is the prefix and its tokens, uint32."""

    document: TokenizedDocument
    sequence: npt.NDArray[np.uint32]
    nll: float = 0.0

    @property
    def tokens(self) -> int:
        return max(len(self.sequence) - 1, 0)

    def scored(self) -> ScoredDocument:
        of = self.document
        return ScoredDocument(of.shard, of.number, of.subset, of.bytes, self.tokens, self.nll)


class _Piece(NamedTuple):
    of: _Open
    window: Window


Windows = list[_Piece]
"""A batch of windows of like length."""
Forward = Callable[[Windows], list[float]]
"""The sum of the losses of each window of a batch, from one forward pass of the model."""
Share = Callable[[Sequence[Windows], Forward], Iterable[list[float]]]
"""How the sums of all windows of all batches, in order, come about."""


def one_by_one(batches: Sequence[Windows], forward: Forward) -> Iterator[list[float]]:
    """All of them in this process."""
    return map(forward, batches)


def ignore(amount: int) -> None:
    """Where nobody asks how far the work has come."""


def score_documents(
    lm: CausalLM,
    documents: Iterable[TokenizedDocument],
    *,
    prefix: int | None,
    max_length: int,
    batch_tokens: int = BATCH_TOKENS,
    look_ahead: int = LOOK_AHEAD,
    scored: Callable[[int], None] = ignore,
    share: Share = one_by_one,
) -> Iterator[ScoredDocument]:
    """Yield every document with its negative log-likelihood, in order; the model is used in its mode, device and dtype.

    prefix         the token id before the first token; None: the first token is context only and not scored
    max_length     the most inputs of a window (see windows.py)
    batch_tokens   inputs in a batch, padding counted; one window always fits
    look_ahead     windows of so many tokens are sorted by length together
    scored         called with each further number of tokens scored
    share          who makes the forward passes: this process all of them, or each process of a job some

    A loss that is no finite number is a PilekitError that names the document.
    """
    held: list[_Piece] = []
    opened: list[_Open] = []
    weight = 0
    for current, window in _pieces(documents, prefix, max_length):
        if weight >= look_ahead:
            _score(lm, held, batch_tokens, scored, share)
            yield from (one.scored() for one in opened if one is not current)
            opened, held, weight = [one for one in opened if one is current], [], 0
        weight += OBJECT_TOKENS
        if window is None:
            opened.append(current)
        else:
            held.append(_Piece(current, window))
            weight += window.end - window.begin
    _score(lm, held, batch_tokens, scored, share)
    yield from (one.scored() for one in opened)


def _pieces(
    documents: Iterable[TokenizedDocument], prefix: int | None, max_length: int
) -> Iterator[tuple[_Open, Window | None]]:
    """Every document, first with None for its beginning, then with each of its windows."""
    before = np.array([] if prefix is None else [prefix], dtype=np.uint32)
    for document in documents:
        current = _Open(document, np.concatenate((before, document.ids)))
        yield current, None
        for window in windows(current.tokens, max_length):
            yield current, window


def _score(lm: CausalLM, held: list[_Piece], batch_tokens: int, scored: Callable[[int], None], share: Share) -> None:
    """Add the losses of all windows to their documents'."""

    def forward(batch: Windows) -> list[float]:
        try:
            return _losses(lm, batch)
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            raise _failed(batch[0], error) from error

    made = list(batches(held, batch_tokens, mixed=not depends_on_length(lm.model)))
    for batch, losses in zip(made, share(made, forward), strict=True):
        for piece, nll in zip(batch, losses, strict=True):
            piece.of.nll += nll
            if not math.isfinite(nll):
                raise _no_number(piece, nll)
        scored(sum(piece.window.targets for piece in batch))


def batches(held: Iterable[_Piece], batch_tokens: int, *, mixed: bool = True) -> Iterator[list[_Piece]]:
    """Windows in batches of like length, the longest first: what does not fit into memory shows at once.

    Not `mixed`, the windows of a batch are of one length, and none is padded.
    """
    batch: list[_Piece] = []
    longest = 0
    for piece in sorted(held, key=lambda piece: piece.window.begin - piece.window.end):
        full = (len(batch) + 1) * longest > batch_tokens
        if batch and (full or not (mixed or piece.window.end - piece.window.begin == longest)):
            yield batch
            batch = []
        if not batch:
            longest = piece.window.end - piece.window.begin
        batch.append(piece)
    if batch:
        yield batch


@torch.no_grad()
def _losses(lm: CausalLM, batch: list[_Piece]) -> list[float]:
    """The sum of the negative log-likelihoods of each window's targets; the first window is the longest."""
    # Not inference_mode: what a model keeps from this forward (rotary tables) must serve training too.
    counts = [piece.window.targets for piece in batch]
    input_ids, places, targets = (torch.from_numpy(array).to(lm.model.device) for array in _arrays(batch))
    # No attention mask: it would only say that the padding behind a window is padding, and cost the fast kernel.
    if lm.head_is_last:
        rows = lm.trunk(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
    else:
        rows = lm.model(input_ids=input_ids, use_cache=False).logits.flatten(0, 1)
    losses = torch.empty(len(places), dtype=torch.float64, device=rows.device)
    step = _chunk_rows(rows.device, lm.head.weight.shape[0] if lm.head_is_last else rows.shape[-1])
    for begin in range(0, len(places), step):
        chunk = slice(begin, begin + step)
        logits = rows[places[chunk]]
        if lm.head_is_last:
            logits = lm.head(logits)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses[chunk] = cross_entropy(logits, targets[chunk], reduction="none")
    starts = np.cumsum([0, *counts[:-1]])
    sums: list[float] = np.add.reduceat(losses.cpu().numpy(), starts).tolist()
    return sums


def _arrays(batch: list[_Piece]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(inputs [windows, longest], the flat place in them of each scored position, the token it predicts)."""
    longest = batch[0].window.end - batch[0].window.begin
    inputs = np.zeros((len(batch), longest), dtype=np.int64)
    places, targets = [], []
    for row, (of, (begin, end, count)) in enumerate(batch):
        inputs[row, : end - begin] = of.sequence[begin:end]
        behind = row * longest + end - begin
        places.append(np.arange(behind - count, behind))
        targets.append(of.sequence[end - count + 1 : end + 1])
    return inputs, np.concatenate(places), np.concatenate(targets).astype(np.int64)


def _chunk_rows(device: torch.device, vocabulary: int) -> int:
    return max(1, (CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES_ON_GPU) // (4 * vocabulary))


def _no_number(piece: _Piece, nll: float) -> PilekitError:
    return PilekitError(
        f"{_place(piece)}: the model's loss is {nll}, not a finite number; its weights are damaged, or too large for "
        "the precision it computes in; copy the model again"
    )


def _failed(longest: _Piece, error: Exception) -> PilekitError:
    """What a model raises at a batch, as of its longest window."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in lines[0]
    return PilekitError(
        f"{_place(longest)}: the model fails at a window of {longest.window.end - longest.window.begin:,} tokens "
        f"({visible(lines[0], 200)}); give a smaller --max-length"
        + (", or fewer batch_tokens to bits_per_byte" if memory else "")
    )


def _place(piece: _Piece) -> str:
    document = piece.of.document
    return f"{visible(document.shard, 200)}, document {document.number} ({visible(document.subset, 80)})"
