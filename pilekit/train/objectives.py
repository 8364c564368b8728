"""What is learnt from a batch: the loss of its targets, and the same loss by subset.

Labels follow Hugging Face: `labels[i]` is the label of token i, so the model's output at i - 1 is compared with it, and
-100 is ignored. A row's first label is therefore never used.

The model gets token ids and positions and no attention_mask, and `use_cache=False`. Only then do positions that begin
at 0 again keep documents apart in transformers: with an attention_mask, even one of ones, or with the cache that is
made by default, a document sees those before it in its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from pilekit.evaluate.causal_lm import CausalLM
from pilekit.train.chunked_loss import chunked_cross_entropy

IGNORED = -100


def clm_loss(
    lm: CausalLM, batch: Mapping[str, Tensor], *, attention: Literal["document", "causal"], scale: float
) -> tuple[Tensor, Tensor]:
    """(loss, nll) of predicting each token from those before it.

    loss  0-d, differentiable: `scale` times the sum over the batch's targets. With `scale` one over the targets of a
          whole step, the gradients of its micro-batches add up to those of the step's mean, however uneven they are
    nll   [rows, seq_len - 1], detached: entry [:, i] is that of token i + 1, and 0 where that is no target

    attention  "document": a token sees its own document; "causal": everything before it in its row

    Both are float32 (float64 for a float64 model). The head runs on positions that predict a target, no others.
    """
    targets = _targets(batch)
    inputs = {"input_ids": batch["input_ids"], "use_cache": False}
    if attention == "document":
        inputs["position_ids"] = batch["position_ids"]
    if not lm.head_is_last:
        logits = lm.model(**inputs).logits[:, :-1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nll = functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
        return nll.sum() * scale, nll.detach()
    hidden = lm.trunk(**inputs).last_hidden_state[:, :-1].flatten(0, 1)
    places = (targets.flatten() != IGNORED).nonzero().squeeze(1)
    total, each = chunked_cross_entropy(
        hidden.index_select(0, places), lm.head.weight, lm.head.bias, targets.flatten()[places]
    )
    return total * scale, each.new_zeros(targets.numel()).index_copy_(0, places, each).view(targets.shape)


def count_targets(batch: Mapping[str, Tensor]) -> int:
    """How many tokens of the batch are predicted."""
    return int((_targets(batch) != IGNORED).sum())


def _targets(batch: Mapping[str, Tensor]) -> Tensor:
    """[rows, seq_len - 1]: what each position but a row's last is to predict, or -100."""
    return batch["labels"][:, 1:]


class SubsetLosses:
    """The mean loss of each subset in one step; a target belongs to the subset of the token that is predicted.

    `add` waits for no device, so that micro-batches queue up behind each other; `by_name` does.
    """

    def __init__(self) -> None:
        self._added: list[tuple[Tensor, Tensor]] = []

    def add(self, nll: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Count in a batch and its losses, as `clm_loss` gives them."""
        subsets = batch["subset_ids"][:, 1:]
        self._added.append((nll.flatten(), subsets.where(_targets(batch) != IGNORED, -1).flatten()))

    def by_name(self, subset_names: Sequence[str]) -> dict[str, float]:
        """Mean loss per target of each subset that has one, in the order of `subset_names`; sums are in float64."""
        if not self._added:
            return {}
        losses, subsets = (torch.cat(column).cpu() for column in zip(*self._added, strict=True))
        is_target = subsets >= 0
        subsets = subsets[is_target]
        counts = subsets.bincount(minlength=len(subset_names)).tolist()
        sums = subsets.bincount(losses[is_target].double(), minlength=len(subset_names)).tolist()
        return {name: total / count for name, total, count in zip(subset_names, sums, counts, strict=True) if count > 0}
