"""The loss of masked language modelling: of telling, from both sides, what the chosen tokens of a row were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from pilekit.evaluate.masked.model import MaskedLM, inputs_by_document, states_at
from pilekit.train.config import Attention
from pilekit.train.step.objectives import IGNORED, loss_of_logits, loss_of_states


def mlm_loss(lm: MaskedLM, batch: Mapping[str, Tensor], *, attention: Attention, scale: float) -> tuple[Tensor, Tensor]:
    """(loss, nll) of telling what the chosen tokens were; as `clm_loss`, but nothing is shifted.

    nll   [rows, seq_len], detached: entry [:, i] is that of token i, and 0 where that was not chosen

    attention  "document": a token sees its own document; "row": everything in its row but padding
    """
    targets, inputs = batch["labels"], _inputs(lm, batch, attention)
    if not lm.head_by_place:
        return loss_of_logits(cast("Any", lm.model)(**inputs).logits, targets, scale)
    places = (targets.flatten() != IGNORED).nonzero().squeeze(1)
    return loss_of_states(states_at(lm, inputs, places), places, lm.head, targets, scale)


def _inputs(lm: MaskedLM, batch: Mapping[str, Tensor], attention: Attention) -> dict[str, Tensor]:
    """What the model is called with; "row" leaves positions to it."""
    if attention == "document":
        return inputs_by_document(lm, batch)
    is_token = batch["doc_ids"] >= 0
    seen = is_token | ~is_token.any(1, keepdim=True)  # a softmax over nothing would be no number
    return {"input_ids": batch["input_ids"], "attention_mask": seen.long()}
