"""Negative log-likelihoods of documents under a causal model.

Logits need most of the memory: a number per position and vocabulary entry. So the trunk, which is the model without its
output layer, runs once per batch of windows. The output layer (the head) and the cross entropy then run on a chunk of
positions at a time, and only on positions that predict a scored token. For some models the logits cannot be computed
from the head alone (`transform` is None). Then the model computes the logits of the whole batch.

`windows.py` cuts a document into windows, and `batching.py` puts windows of several documents into a batch. Padding
stands on the right of a window, where a causal model does not look, and each token has its own loss. A model that
computes differently for another length gets windows of one length in a batch. So batching does not change a figure.
Cross entropy is computed in float32 at least, and a document's negative log-likelihood is the exact sum (`fsum`) of its
tokens' losses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pilekit.evaluate.score.batching import (
    BATCH_TOKENS,
    Float64,
    Row,
    Scoring,
    TokenizedDocument,
    Windows,
    chunk_rows,
    usual_batch_tokens,
)
from pilekit.evaluate.score.windows import windows
from pilekit.models.causal import CausalLM, depends_on_length

LOOK_AHEAD = 1 << 20
"""Tokens of windows that are sorted by length together. More look-ahead means less padding: 0.7 % of the computed
tokens with this value, 2.2 % with a quarter of it, 12 % with 1 / 64 (1,068 documents of 22 subsets, batches of 4,096
tokens, windows of 2,048)."""


def causal_scoring(
    lm: CausalLM,
    max_length: int,
    batch_tokens: int | None = None,
    *,
    prefix: int | None,
    context_len: int = 1,
    look_ahead: int = LOOK_AHEAD,
    chunk_bytes: int | None = None,
) -> Scoring:
    """The scoring of documents by `lm`: a document's numbers are the losses of its predicted tokens in nats.

    max_length     the most inputs of a window (see windows.py)
    batch_tokens   inputs in a batch, padding counted; a longer window is a batch of its own. None: the device's default
    prefix         the token id before the first token; None: the first token is context only and not scored
    context_len    in windows after the first, each predicted token has at least this many inputs before it
    look_ahead     windows of this many tokens are sorted by length together
    chunk_bytes    logits made at a time; None: the device's default

    The model keeps its mode, device and dtype.
    """
    batch_tokens = batch_tokens or batch_tokens_of(lm)
    prefix_ids = np.array([] if prefix is None else [prefix], dtype=np.uint32)

    def windows_of(document: TokenizedDocument) -> Iterator[list[Row]]:
        sequence = np.concatenate((prefix_ids, document.ids))
        for begin, end, targets in windows(max(len(sequence) - 1, 0), max_length, context_len):
            yield [Row(document, sequence[begin : end + 1], end - begin, targets, begin)]

    mixed = not depends_on_length(lm.model)
    return Scoring(
        windows_of,
        lambda batch: losses_of(lm, batch, chunk_bytes),
        lambda length: batch_tokens // length,
        mixed,
        look_ahead,
    )


def batch_tokens_of(lm: CausalLM) -> int:
    """The default number of inputs in a batch: fewer if only the model itself makes logits, of all inputs at once."""
    return usual_batch_tokens(lm.model.device) if lm.transform is not None else BATCH_TOKENS


@torch.no_grad()
def losses_of(lm: CausalLM, batch: Windows, chunk_bytes: int | None, leads: bool = False) -> list[Float64]:
    """The negative log-likelihoods of each window's targets; the first window is the longest.

    leads   behind a window's losses come the leads of its targets: how far the target's logit is above the highest of
            all others. A lead of 0 counts as +0.0 if the target has the lower id, and so is the arg-max, else as -0.0
    """
    # A model may keep tables from this pass, such as rotary angles. Training could not use them after inference_mode.
    longest = batch[0].length
    inputs = np.zeros((len(batch), longest), dtype=np.int64)
    for row, window in enumerate(batch):
        inputs[row, : window.length] = window.ids[:-1]
    # The input at position i predicts the id at i + 1. A window scores its last `window.tokens` ids, at least one.
    ends = [row * longest + window.length for row, window in enumerate(batch)]
    predicting = np.concatenate([np.arange(end - window.tokens, end) for end, window in zip(ends, batch, strict=True)])
    scored_ids = np.concatenate([window.ids[-window.tokens :] for window in batch]).astype(np.int64)
    input_ids, positions, targets = (
        torch.from_numpy(array).to(lm.model.device) for array in (inputs, predicting, scored_ids)
    )
    # The causal mask hides the padding. An explicit attention mask would prevent the fast attention kernel.
    if lm.transform is not None:
        outputs = lm.trunk(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
    else:
        outputs = lm.model(input_ids=input_ids, use_cache=False).logits.flatten(0, 1)
    numbers = torch.empty((1 + leads, len(positions)), dtype=torch.float64, device=outputs.device)
    vocabulary = lm.head.weight.shape[0] if lm.transform is not None else outputs.shape[-1]
    step = chunk_rows(outputs.device, vocabulary, chunk_bytes)
    for begin in range(0, len(positions), step):
        chunk = slice(begin, begin + step)
        logits = outputs[positions[chunk]]
        if lm.transform is not None:
            logits = lm.transform(lm.head(logits))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        numbers[0, chunk] = cross_entropy(logits, targets[chunk], reduction="none")
        if leads:
            numbers[1, chunk] = _leads(logits, targets[chunk])
    parts = np.split(numbers.cpu().numpy(), np.cumsum([window.tokens for window in batch[:-1]]), axis=1)
    return [part.ravel() for part in parts]


def _leads(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The leads of the targets; `logits` are changed."""
    places = targets.unsqueeze(1)
    own = logits.gather(1, places).squeeze(1)
    lead = own - logits.scatter_(1, places, -torch.inf).amax(dim=1)
    # To find the place of each maximum takes twice the time of the maxima alone, and only ties need it.
    ties = lead == 0
    lead[ties] *= torch.where(logits[ties].argmax(dim=1) < targets[ties], -1.0, 1.0)
    return lead
