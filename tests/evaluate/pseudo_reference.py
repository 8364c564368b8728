"""Pseudo-log-likelihood in its plainest form: one token masked at a time, one row at a time, all logits, float64."""

from __future__ import annotations

from typing import Any

import torch

from pilekit.evaluate.masked.pseudo_nll import Template


@torch.no_grad()
def reference_losses(model: Any, ids: list[int], template: Template, max_length: int) -> list[list[float]]:
    """Per window, the negative log-likelihood of each of its tokens in nats; `model` computes in float64."""
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


def reference_pseudo_nll(model: Any, ids: list[int], template: Template, max_length: int) -> float:
    """The negative pseudo-log-likelihood of a document in nats."""
    return sum(sum(losses) for losses in reference_losses(model, ids, template, max_length))
