"""Negative log-likelihoods of documents: windows of like length in one batch, logits only where a token is scored.

    documents -> their windows, held until they have LOOK_AHEAD tokens -> batches of like length, the longest first
              -> the trunk once -> head and cross entropy in chunks of rows -> sums in float64
              -> each document as soon as the last of its windows is scored

Batching changes no figure: windows are padded on the right, where a causal model does not look, and every window has a
sum of its own. Memory grows neither with the corpus nor, but for its own tokens, with a document: what is held is the
look-ahead, the hidden states of one batch and one chunk of logits, in float32 whatever the model computes in. Only a
model whose logits could not be told from its head's output (`finish` None) has those of a whole batch made.
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
from pilekit.evaluate.model.causal import CausalLM, depends_on_length
from pilekit.evaluate.model.fitting import Fitting, is_out_of_memory
from pilekit.evaluate.results.records import ScoredDocument as ScoredDocument
from pilekit.evaluate.score.windows import Window, windows

BATCH_TOKENS = 4096
"""A token of `pythia-14m` takes one CPU core 270-280 us with 2,048 or 4,096 tokens in a batch, 300 with 8,192, 330 with
32,768: larger batches leave the cache, and pad more. Four fifths of it are the head and its softmax."""
BATCH_TOKENS_ON_GPU = 32_768
"""A guess, not measured: enough that the GPU and not Python, which launches its kernels, is what takes the time."""
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
    text            xxh3_64 of its raw text's UTF-8, which is part of it
    subset          its label
    bytes           UTF-8 bytes of its raw text
    ids             uint32 [tokens], no special token added
    """

    shard: str
    number: int
    text: int
    subset: str
    bytes: int
    ids: npt.NDArray[np.uint32] = field(repr=False)


@dataclass(slots=True)
class _Open:
    """A document whose windows are being scored.

    sequence   the prefix and its tokens, uint32
    held       how many of its windows are not scored yet
    whole      whether these are all that are left
    """

    document: TokenizedDocument
    sequence: npt.NDArray[np.uint32]
    held: int = 0
    whole: bool = False
    nll: float = 0.0

    @property
    def tokens(self) -> int:
        return max(len(self.sequence) - 1, 0)

    def scored(self) -> ScoredDocument:
        of = self.document
        return ScoredDocument(of.shard, of.number, of.text, of.subset, of.bytes, self.tokens, self.nll)


class _Piece(NamedTuple):
    of: _Open
    window: Window


Windows = list[_Piece]
"""A batch of windows of like length."""
Forward = Callable[[Windows], list[float]]
"""The sum of the losses of each window of a batch, from one forward pass of the model."""
Share = Callable[[Sequence[Windows], Forward], Iterable[list[float]]]
"""How the sums of all windows of all batches, in order, come about."""


def ignore(amount: int) -> None:
    """Where nobody asks how far the work has come."""


def usual_batch_tokens(device: torch.device) -> int:
    """Inputs in a batch where none are asked for."""
    return BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ON_GPU


def score_documents(
    lm: CausalLM,
    documents: Iterable[TokenizedDocument],
    *,
    prefix: int | None,
    max_length: int,
    context_len: int = 1,
    batch_tokens: int | None = None,
    look_ahead: int = LOOK_AHEAD,
    scored: Callable[[int], None] = ignore,
    share: Share | None = None,
) -> Iterator[ScoredDocument]:
    """Yield every document with its negative log-likelihood; the model is used in its mode, device and dtype.

    prefix         the token id before the first token; None: the first token is context only and not scored
    max_length     the most inputs of a window (see windows.py)
    context_len    inputs that a window behind the first has, at the least, for each token that it predicts
    batch_tokens   inputs in a batch, padding counted; one window always fits. None: what suits the device
    look_ahead     windows of so many tokens are sorted by length together
    scored         called with each further number of tokens scored
    share          who makes the forward passes; None: this process all of them, and where memory does not hold a batch
                   it is made in parts, and so are all others, which a warning says

    A document comes as soon as it is scored, between two forward passes; so the order is that of their lengths rather
    than their own. A loss that is no finite number is a PilekitError that names the document, and so is what the model
    raises; `share` gets it from the forward pass, as the cause of that PilekitError.
    """
    share = share or Fitting(_length)
    batch_tokens = batch_tokens or (usual_batch_tokens(lm.model.device) if lm.transform is not None else BATCH_TOKENS)
    held: list[_Piece] = []
    weight = 0
    before = np.array([] if prefix is None else [prefix], dtype=np.uint32)
    for document in documents:
        current = _Open(document, np.concatenate((before, document.ids)))
        for window in windows(current.tokens, max_length, context_len):
            if weight >= look_ahead:
                yield from _score(lm, held, batch_tokens, scored, share)
                held, weight = [], 0
            held.append(_Piece(current, window))
            current.held += 1
            weight += OBJECT_TOKENS + window.end - window.begin
        current.whole = True
        if not current.held:
            yield current.scored()
    yield from _score(lm, held, batch_tokens, scored, share)


def _score(
    lm: CausalLM, held: list[_Piece], batch_tokens: int, scored: Callable[[int], None], share: Share
) -> Iterator[ScoredDocument]:
    """Add the losses of all windows to their documents', and yield those that are complete."""

    def forward(batch: Windows) -> list[float]:
        try:
            return _losses(lm, batch)
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            raise failed(batch[0].of.document, len(batch), _length(batch[0]), error) from error

    made = list(batches(held, batch_tokens, mixed=not depends_on_length(lm.model)))
    for batch, losses in zip(made, share(made, forward), strict=True):
        for piece, nll in zip(batch, losses, strict=True):
            if not math.isfinite(nll):
                raise no_number(piece.of.document, nll)
            piece.of.nll += nll
            piece.of.held -= 1
        scored(sum(piece.window.targets for piece in batch))
        ended = {id(piece.of): piece.of for piece in batch if piece.of.whole and not piece.of.held}
        yield from (one.scored() for one in ended.values())


def batches(held: Iterable[_Piece], batch_tokens: int, *, mixed: bool = True) -> Iterator[list[_Piece]]:
    """Windows in batches of like length, the longest first: what does not fit into memory shows at once.

    Not `mixed`, the windows of a batch are of one length, and none is padded.
    """
    batch: list[_Piece] = []
    longest = 0
    for piece in sorted(held, key=_length, reverse=True):
        full = (len(batch) + 1) * longest > batch_tokens
        if batch and (full or not (mixed or _length(piece) == longest)):
            yield batch
            batch = []
        if not batch:
            longest = _length(piece)
        batch.append(piece)
    if batch:
        yield batch


def _length(piece: _Piece) -> int:
    return piece.window.end - piece.window.begin


@torch.no_grad()
def _losses(lm: CausalLM, batch: list[_Piece]) -> list[float]:
    """The sum of the negative log-likelihoods of each window's targets; the first window is the longest."""
    # Not inference_mode: what a model keeps from this forward (rotary tables) must serve training too.
    counts = [piece.window.targets for piece in batch]
    input_ids, places, targets = (torch.from_numpy(array).to(lm.model.device) for array in _arrays(batch))
    # No attention mask: it would only say that the padding behind a window is padding, and cost the fast kernel.
    if lm.transform is not None:
        rows = lm.trunk(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
    else:
        rows = lm.model(input_ids=input_ids, use_cache=False).logits.flatten(0, 1)
    losses = torch.empty(len(places), dtype=torch.float64, device=rows.device)
    step = chunk_rows(rows.device, lm.head.weight.shape[0] if lm.transform is not None else rows.shape[-1])
    for begin in range(0, len(places), step):
        chunk = slice(begin, begin + step)
        logits = rows[places[chunk]]
        if lm.transform is not None:
            logits = lm.transform(lm.head(logits))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses[chunk] = cross_entropy(logits, targets[chunk], reduction="none")
    starts = np.cumsum([0, *counts[:-1]])
    sums: list[float] = np.add.reduceat(losses.cpu().numpy(), starts).tolist()
    return sums


def _arrays(batch: list[_Piece]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(inputs [windows, longest], the flat place in them of each scored position, the token it predicts)."""
    longest = _length(batch[0])
    inputs = np.zeros((len(batch), longest), dtype=np.int64)
    places, targets = [], []
    for row, (of, (begin, end, count)) in enumerate(batch):
        inputs[row, : end - begin] = of.sequence[begin:end]
        behind = row * longest + end - begin
        places.append(np.arange(behind - count, behind))
        targets.append(of.sequence[end - count + 1 : end + 1])
    return inputs, np.concatenate(places), np.concatenate(targets).astype(np.int64)


def chunk_rows(device: torch.device, vocabulary: int) -> int:
    """How many rows of logits are made at a time."""
    return max(1, (CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES_ON_GPU) // (4 * vocabulary))


def no_number(document: TokenizedDocument, nll: float) -> PilekitError:
    """What a loss that is no finite number is told as."""
    return PilekitError(
        f"{_place(document)}: the model's loss is {nll}, not a finite number; its weights are damaged, or too large "
        "for the precision it computes in; copy the model again"
    )


def failed(document: TokenizedDocument, windows: int, length: int, error: Exception) -> PilekitError:
    """What a model raises at a batch of windows, as of its longest, which is of this document."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = visible(lines[0], 200)
    if is_out_of_memory(error):
        many = "a window" if windows == 1 else f"{windows:,} windows"
        return PilekitError(
            f"{_place(document)}: memory does not hold a forward pass over {many} of {length:,} tokens ({said}); "
            "give a smaller --max-length, or --dtype bf16"
        )
    return PilekitError(
        f"{_place(document)}: the model fails at a window of {length:,} tokens ({said}); give a smaller --max-length"
    )


def _place(document: TokenizedDocument) -> str:
    return f"{visible(document.shard, 200)}, document {document.number} ({visible(document.subset, 80)})"
