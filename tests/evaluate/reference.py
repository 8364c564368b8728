"""Bits per byte and pseudo-log-likelihoods in their plainest form: one row at a time, all logits, float64."""

from __future__ import annotations

import math
from typing import Any

import torch

from pilekit.evaluate.score.pseudo_nll import Template


def reference_windows(tokens: int, max_length: int, context_len: int) -> list[tuple[range, range]]:
    """Per window (places of the inputs, places predicted) in [prefix] + tokens, by the words of the rule."""
    found, done = [], 0  # `done` tokens, at places 1 .. done, are predicted
    while done < tokens:
        count = min(max_length if done == 0 else max_length - context_len + 1, tokens - done)
        predicted = range(done + 1, done + count + 1)
        inputs = range(0 if done == 0 else predicted[-1] - max_length, predicted[-1])
        found.append((inputs, predicted))
        done += count
    return found


@torch.no_grad()
def reference_nll(model: Any, ids: list[int], prefix: int | None, max_length: int, context_len: int = 1) -> float:
    """The negative log-likelihood of a document in nats; `model` computes in float64."""
    sequence = ids if prefix is None else [prefix, *ids]
    nll = 0.0
    for inputs, predicted in reference_windows(max(len(sequence) - 1, 0), max_length, context_len):
        logits = model(torch.tensor([[sequence[place] for place in inputs]])).logits[0]
        assert logits.dtype == torch.float64
        for row, place in zip(logits[-len(predicted) :], predicted, strict=True):
            nll -= float(row[sequence[place]] - torch.logsumexp(row, 0))
    return nll


def reference_bpb(nll: float, texts: list[str]) -> float:
    return nll / math.log(2) / sum(len(text.encode()) for text in texts)


@torch.no_grad()
def reference_losses(model: Any, ids: list[int], template: Template, max_length: int) -> list[list[float]]:
    """Per window, each token's negative pseudo-log-likelihood in nats: one masked at a time, `model` in float64."""
    room = max_length - len(template.before) - len(template.behind)
    found = []
    while ids:
        window, ids = ids[:room], ids[room:]
        losses = []
        for place, token in enumerate(window):
            masked = [*template.before, *window[:place], template.mask, *window[place + 1 :], *template.behind]
            row = torch.tensor([masked])
            logits = model(input_ids=row, attention_mask=torch.ones_like(row)).logits[0, len(template.before) + place]
            assert logits.dtype == torch.float64
            losses.append(float(torch.logsumexp(logits, 0) - logits[token]))
        found.append(losses)
    return found
