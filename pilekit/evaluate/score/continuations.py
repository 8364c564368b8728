"""Sequences of a document, a prompt and its continuation: would greedy decoding give the continuation word for word?

Greedy decoding of N tokens behind a prompt gives the text's own N tokens exactly if each of them is the arg-max behind
the tokens of the text before it: as long as all are right, the model has seen the same tokens. So one forward pass over
a sequence replaces N steps. Nothing stands before the prompt, no BOS either.

Of two equal logits the lower id is the arg-max, as in torch. Another size of a batch rounds differently, and may turn
over an arg-max whose lead is within rounding, a near tie.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from pilekit.evaluate.score.batching import Row, Scoring, TokenizedDocument
from pilekit.evaluate.score.causal_nll import batch_tokens_of, losses_of
from pilekit.models.causal import CausalLM

NEAR = 64
"""A near tie is a lead of less than 64 eps of the precision, two to four steps of a logit of 16 to 32: 7.6e-6 in fp32,
0.5 in bf16."""
BATCHES_AHEAD = 16

SEQUENCE = np.dtype([("place", "<i4"), ("right", "<i4"), ("run", "<i4"), ("near_tie", "?"), ("bits", "<f8")])
"""What is recorded of a sequence.

place      its first token's place in the document, from 0
right      how many tokens of the continuation are the arg-max
run        how many of them from the continuation's start; a memorised continuation has all
near_tie   whether near ties decide if it is memorised
bits       -log2 of the probability of the continuation
"""


def begins(tokens: int, length: int, every: int | None) -> range:
    """The places where sequences of `length` tokens begin in a document: at its start alone (None), or each `every`."""
    return range(0, max(0, tokens - length + 1), every or max(1, tokens))


def continuation_scoring(
    lm: CausalLM, prompt: int, continuation: int, every: int | None, batch_tokens: int | None = None
) -> Scoring:
    """The scoring of sequences by `lm`: of each, the losses of the continuation's tokens, then their leads.

    every          tokens from one sequence's begin to the next one's; None: one sequence, at the document's start
    batch_tokens   inputs in a batch; None: the device's default

    The model keeps its mode, device and dtype.
    """
    length = prompt + continuation
    batch_tokens = batch_tokens or batch_tokens_of(lm)

    def windows_of(document: TokenizedDocument) -> Iterator[list[Row]]:
        for begin in begins(len(document.ids), length, every):
            yield [Row(document, document.ids[begin : begin + length], length - 1, continuation, begin)]

    return Scoring(
        windows_of,
        lambda batch: losses_of(lm, batch, None, leads=True),
        lambda inputs: batch_tokens // inputs,
        True,
        BATCHES_AHEAD * batch_tokens,
    )


def scored_sequences(document: TokenizedDocument, continuation: int, dtype: torch.dtype) -> npt.NDArray[np.void]:
    """`SEQUENCE` [sequences]: what is recorded of a document that `continuation_scoring` has scored.

    dtype   the precision of the model
    """
    losses, leads = document.numbers().reshape(-1, 2, continuation).swapaxes(0, 1)
    right, near = ~np.signbit(leads), np.abs(leads) < NEAR * torch.finfo(dtype).eps
    sequences = np.zeros(len(losses), SEQUENCE)
    sequences["place"] = [window for window, _ in sorted(document.parts)]
    sequences["right"] = right.sum(axis=1)
    sequences["run"] = np.logical_and.accumulate(right, axis=1).sum(axis=1)
    sequences["near_tie"] = (right | near).all(axis=1) & near.any(axis=1)
    sequences["bits"] = losses.sum(axis=1) / np.log(2)
    return sequences
