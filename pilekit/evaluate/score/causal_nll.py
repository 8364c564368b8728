"""Negative log-likelihoods of documents under a causal model.

`windows.py` cuts a document into windows, and `batching.py` puts these into batches. A batch goes through the trunk
once. Head and cross entropy run in chunks of rows, only where a token is scored. Cross entropy is float32 whatever the
model computes in, and losses are summed in float64. Windows are padded on the right, where a causal model does not
look, and each has its own sum, so batching changes no figure. If logits cannot be made from the head's output
(`transform` is None), the model makes the logits of a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pilekit.evaluate.model.causal import CausalLM, depends_on_length
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.evaluate.score.batching import (
    BATCH_TOKENS,
    OpenDocument,
    Row,
    Share,
    TokenizedDocument,
    Windows,
    chunk_rows,
    ignore,
    score_rows,
    usual_batch_tokens,
)
from pilekit.evaluate.score.fitting import Fitting
from pilekit.evaluate.score.windows import windows

LOOK_AHEAD = 1 << 20
"""With 1,068 documents of 22 subsets, batches of 4,096 tokens and windows of 2,048, 0.7 % of the computed tokens are
padding; 2.2 % with a quarter of this look-ahead, 12 % with 1 / 64."""


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
    """Yield every document with its negative log-likelihood; the model's mode, device and dtype stay.

    prefix         the token id before the first token; None: the first token is context only and not scored
    max_length     the most inputs of a window (see windows.py)
    context_len    the least number of inputs before each predicted token, in windows after the first
    batch_tokens   inputs in a batch, padding counted; one window always fits. None: the device's default
    look_ahead     windows of this many tokens are sorted by length together
    scored         called with each further number of tokens scored
    share          makes the forward passes; None: this process makes all of them, and splits batches that do not fit
                   into memory

    A document is yielded as soon as it is scored, so the order follows the lengths of documents. A loss that is not
    finite and an error of the model are PilekitErrors that name the document.
    """
    batch_tokens = batch_tokens or (usual_batch_tokens(lm.model.device) if lm.transform is not None else BATCH_TOKENS)
    before = np.array([] if prefix is None else [prefix], dtype=np.uint32)

    def windows_of(current: OpenDocument) -> Iterator[list[Row]]:
        sequence = np.concatenate((before, current.document.ids))
        for begin, end, targets in windows(max(len(sequence) - 1, 0), max_length, context_len):
            yield [Row(current, sequence[begin : end + 1], end - begin, targets)]

    return score_rows(
        documents,
        windows_of,
        lambda batch: _losses(lm, batch),
        _nll,
        most_rows=lambda length: batch_tokens // length,
        mixed=not depends_on_length(lm.model),
        look_ahead=look_ahead,
        share=share or Fitting(),
        scored=scored,
    )


def _nll(of: OpenDocument) -> float:
    nll = 0.0
    for loss in of.losses.get(0, ()):
        nll += loss
    return nll


@torch.no_grad()
def _losses(lm: CausalLM, batch: Windows) -> list[float]:
    """The sum of the negative log-likelihoods of each window's targets; the first window is the longest."""
    # Not inference_mode: training must be able to use tables that a model keeps from this forward (rotary angles).
    longest = batch[0].length
    inputs = np.zeros((len(batch), longest), dtype=np.int64)
    for row, one in enumerate(batch):
        inputs[row, : one.length] = one.ids[:-1]
    ends = [row * longest + one.length for row, one in enumerate(batch)]
    scored_places = np.concatenate([np.arange(end - one.tokens, end) for end, one in zip(ends, batch, strict=True)])
    scored_ids = np.concatenate([one.ids[-one.tokens :] for one in batch]).astype(np.int64)
    input_ids, places, targets = (
        torch.from_numpy(array).to(lm.model.device) for array in (inputs, scored_places, scored_ids)
    )
    # No attention mask: it would only mark the padding after a window, and prevent the fast kernel.
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
    starts = np.cumsum([0, *(one.tokens for one in batch[:-1])])
    sums: list[float] = np.add.reduceat(losses.cpu().numpy(), starts).tolist()
    return sums
