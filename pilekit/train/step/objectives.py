"""What is learnt from a batch: the loss of its targets, and the same loss by subset.

Labels follow Hugging Face: `labels[i]` is the label of token i, so the model's output at i - 1 is compared with it, and
-100 is ignored. A row's first label is therefore never used. With "mlm" (masked.py) labels are those of chosen tokens,
and each is told from the model's output at its own place.

The model gets token ids and positions and no attention_mask, and `use_cache=False`. Only then do positions that begin
at 0 again keep documents apart in transformers: with an attention_mask, even one of ones, or with the cache that is
made by default, a document sees those before it in its row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from pilekit.evaluate.model.causal import CausalLM
from pilekit.evaluate.model.logit_transform import UNCHANGED, LogitTransform
from pilekit.train.config import Attention, Objective
from pilekit.train.step.chunked_loss import chunked_cross_entropy

IGNORED = -100


def clm_loss(lm: CausalLM, batch: Mapping[str, Tensor], *, attention: Attention, scale: float) -> tuple[Tensor, Tensor]:
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
    if lm.transform is None:
        return loss_of_logits(lm.model(**inputs).logits[:, :-1], targets, scale)
    hidden = lm.trunk(**inputs).last_hidden_state[:, :-1].flatten(0, 1)
    places = (targets.flatten() != IGNORED).nonzero().squeeze(1)
    return loss_of_states(hidden.index_select(0, places), places, lm.head, targets, scale, lm.transform)


def loss_of_logits(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(loss, nll) of logits [rows, length, vocabulary] against `targets` [rows, length], -100 where there is none."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    return nll.sum() * scale, nll.detach()


def loss_of_states(
    states: Tensor,
    places: Tensor,
    head: nn.Linear,
    targets: Tensor,
    scale: float,
    transform: LogitTransform = UNCHANGED,
) -> tuple[Tensor, Tensor]:
    """The same from `states` [places, width], through `head` and `transform`, for the flat targets at `places`."""
    total, each = chunked_cross_entropy(states, head.weight, head.bias, targets.flatten()[places], transform=transform)
    return total * scale, each.new_zeros(targets.numel()).index_copy_(0, places, each).view(targets.shape)


def count_targets(batch: Mapping[str, Tensor], objective: Objective = "clm") -> int:
    """How many tokens of the batch are predicted."""
    return int((_targets(batch, objective) != IGNORED).sum())


def _targets(batch: Mapping[str, Tensor], objective: Objective = "clm") -> Tensor:
    """ "clm": [rows, seq_len - 1], what each position but a row's last is to predict, or -100; "mlm": the labels."""
    return batch["labels"] if objective == "mlm" else batch["labels"][:, 1:]


def subset_sums(nll: Tensor, batch: Mapping[str, Tensor], subsets: int) -> tuple[Tensor, Tensor]:
    """(sum of losses, number of targets) of each subset, float64 [subsets] each.

    nll   of the batch's rows, as `clm_loss` or `mlm_loss` gives it, on the CPU

    A target belongs to the subset of the token that is predicted; the sums' sums are those of the batch. Which token
    that is, the columns of `nll` tell: its last is that of a row's last token.
    """
    columns = slice(batch["labels"].shape[1] - nll.shape[1], None)
    is_target = batch["labels"][:, columns] != IGNORED
    subset = batch["subset_ids"][:, columns][is_target]
    sums = subset.bincount(nll[is_target].double(), minlength=subsets).double()  # of nothing, torch counts in int64
    return sums, subset.bincount(minlength=subsets).double()
