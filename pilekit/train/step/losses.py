"""The loss of a micro-batch: causal or masked language modelling, and the loss of a step by subset over all ranks.

Labels follow Hugging Face: `labels[i]` belongs to token i, and -100 means no target. With "clm" the model's output at
i - 1 is compared with `labels[i]`, so a row's first label is never used. With "mlm" labels are the chosen tokens, each
predicted at its own place.

A causal model gets token ids and positions, no attention_mask, and `use_cache=False`. Only then does transformers keep
documents apart where positions begin at 0 again. With an attention_mask, even one of ones, or with the default cache, a
document attends to earlier documents in its row.

Ranks see different rows, so each knows only a part of the step. `StepSums` sends everything in one message, as numbers
to add: a loss is a sum and a count, and each rank has its own place for its seconds and bytes. Losses are summed in
float64, in the order of ranks, so all ranks get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pilekit.engine.ranks import Ranks
from pilekit.evaluate.masked.model import MaskedLM, inputs_by_document, states_at
from pilekit.evaluate.model.causal import CausalLM
from pilekit.evaluate.model.logit_transform import UNCHANGED, LogitTransform
from pilekit.train.config.sections import Attention, Objective
from pilekit.train.step.chunked_loss import chunked_cross_entropy

if TYPE_CHECKING:
    from pilekit.train.step.teacher import Teacher

IGNORED = -100


class StepLoss(nn.Module):
    """The model with its loss as one module: `StepLoss(lm, attention=...)(rows, scale)` is `clm_loss` or `mlm_loss`.

    Sharding gathers a module's parameters only during its `forward`, and the loss reads the head's weight itself, to
    avoid holding all logits. So the loss is computed inside this `forward`, around the whole model. It also gathers all
    parameters outside of blocks (embeddings, final norm, head), once for forward and backward, with tied weights
    together.
    """

    def __init__(self, lm: CausalLM | MaskedLM, *, attention: Attention, teacher: Teacher | None = None) -> None:
        super().__init__()
        self.model = lm.model
        self._lm, self._attention, self._teacher = lm, attention, teacher

    def forward(self, rows: Mapping[str, Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """(loss, nll) of some rows: the loss is 0-d and differentiable, nll is detached."""
        loss: Any = mlm_loss if isinstance(self._lm, MaskedLM) else clm_loss
        return loss(self._lm, rows, attention=self._attention, scale=scale, teacher=self._teacher)  # type: ignore[no-any-return]

    def gather(self) -> None:
        """Only gather the parameters that belong to no block, as before a forward."""


def clm_loss(
    lm: CausalLM, batch: Mapping[str, Tensor], *, attention: Attention, scale: float, teacher: Teacher | None = None
) -> tuple[Tensor, Tensor]:
    """(loss, nll) of predicting each token from the tokens before it.

    loss       0-d, differentiable: `scale` times the sum over the batch's targets. With `scale` 1 / targets of a whole
               step, the gradients of its micro-batches add up to the gradient of the step's mean loss
    nll        [rows, seq_len - 1], detached: entry [:, i] belongs to token i + 1, and is 0 without a target
    attention  "document": a token sees its own document; "causal": everything before it in its row
    teacher    a model whose predictions of the same targets are part of the loss

    Both are float32 (float64 for a float64 model). The head runs only on positions that predict a target.
    """
    targets = _targets(batch, "clm")
    if lm.transform is None:
        return _loss_of_logits(lm.model(**_causal_inputs(batch, attention)).logits[:, :-1], targets, scale)
    return _loss_of_states(lm, batch, attention, targets, scale, lm.transform, teacher)


def mlm_loss(
    lm: MaskedLM, batch: Mapping[str, Tensor], *, attention: Attention, scale: float, teacher: Teacher | None = None
) -> tuple[Tensor, Tensor]:
    """(loss, nll) of predicting the chosen tokens from both sides; as `clm_loss`, but nothing is shifted.

    nll        [rows, seq_len], detached: entry [:, i] belongs to token i, and is 0 if that token was not chosen
    attention  "document": a token sees its own document; "row": everything in its row but padding
    """
    targets = _targets(batch, "mlm")
    if not lm.head_by_place:
        return _loss_of_logits(cast("Any", lm.model)(**_masked_inputs(lm, batch, attention)).logits, targets, scale)
    return _loss_of_states(lm, batch, attention, targets, scale, UNCHANGED, teacher)


def head_states(lm: CausalLM | MaskedLM, batch: Mapping[str, Tensor], attention: Attention, places: Tensor) -> Tensor:
    """[places, width]: the input of the model's head at these flat places of its targets."""
    if isinstance(lm, MaskedLM):
        return states_at(lm, _masked_inputs(lm, batch, attention), places)
    hidden: Tensor = lm.trunk(**_causal_inputs(batch, attention)).last_hidden_state
    return hidden[:, :-1].flatten(0, 1).index_select(0, places)


def _causal_inputs(batch: Mapping[str, Tensor], attention: Attention) -> dict[str, Any]:
    positions = {"position_ids": batch["position_ids"]} if attention == "document" else {}
    return {"input_ids": batch["input_ids"], "use_cache": False, **positions}


def _masked_inputs(lm: MaskedLM, batch: Mapping[str, Tensor], attention: Attention) -> dict[str, Tensor]:
    if attention == "document":
        return inputs_by_document(lm, batch)
    is_token = batch["doc_ids"] >= 0
    seen = is_token | ~is_token.any(1, keepdim=True)  # a softmax over nothing would be NaN
    return {"input_ids": batch["input_ids"], "attention_mask": seen.long()}


def _loss_of_logits(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(loss, nll) of logits [rows, length, vocabulary] against `targets` [rows, length]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    return nll.sum() * scale, nll.detach()


def _loss_of_states(
    lm: CausalLM | MaskedLM,
    batch: Mapping[str, Tensor],
    attention: Attention,
    targets: Tensor,
    scale: float,
    transform: LogitTransform,
    teacher: Teacher | None,
) -> tuple[Tensor, Tensor]:
    """(loss, nll) of the states that predict `targets` [rows, length], through the head and `transform`."""
    places = _places(targets)
    states, chosen = head_states(lm, batch, attention, places), targets.flatten()[places]
    lesson = nullcontext() if teacher is None else teacher.lesson(batch, places)
    with lesson as taught:
        head: Any = lm.head
        total, each = chunked_cross_entropy(states, head.weight, head.bias, chosen, transform=transform, taught=taught)
    if teacher is not None and taught is not None and teacher.cosine:
        likeness = functional.cosine_similarity(states.to(total.dtype), taught.states.to(total.dtype), dim=-1)
        total = total + teacher.cosine * (1 - likeness).sum()
    return total * scale, each.new_zeros(targets.numel()).index_copy_(0, places, each).view(targets.shape)


def _targets(batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """The labels to predict: all for "mlm", without each row's first for "clm"."""
    return batch["labels"] if objective == "mlm" else batch["labels"][:, 1:]


def _places(targets: Tensor) -> Tensor:
    """The flat positions that have a target."""
    return (targets.flatten() != IGNORED).nonzero().squeeze(1)


def count_targets(batch: Mapping[str, Tensor], objective: Objective = "clm") -> int:
    """The number of tokens of the batch that are predicted."""
    return int((_targets(batch, objective) != IGNORED).sum())


def subset_sums(nll: Tensor, batch: Mapping[str, Tensor], subsets: int) -> tuple[Tensor, Tensor]:
    """(sum of losses, number of targets) of each subset, float64 [subsets] each.

    nll   of the batch's rows, from `clm_loss` or `mlm_loss`, on the CPU

    A target belongs to the subset of the predicted token. The last column of `nll` is a row's last token.
    """
    columns = slice(batch["labels"].shape[1] - nll.shape[1], None)
    is_target = batch["labels"][:, columns] != IGNORED
    subset = batch["subset_ids"][:, columns][is_target]
    sums = subset.bincount(nll[is_target].double(), minlength=subsets).double()  # without targets, torch returns int64
    return sums, subset.bincount(minlength=subsets).double()


@dataclass(frozen=True, slots=True)
class StepSums:
    """A step over all ranks.

    loss       mean over the step's targets, in nats; may be infinite, and is NaN if there is no target
    by_subset  the same for each subset with a target, in the order of the names; finite ones only
    waited     seconds that the slowest rank waited for data
    memory     bytes of each rank, by kind of memory: "CPU", and "GPU" if ranks compute there
    """

    loss: float
    by_subset: dict[str, float]
    waited: float
    memory: dict[str, list[int]]

    @classmethod
    def over(
        cls,
        ranks: Ranks,
        nll: Tensor,
        batch: Mapping[str, Tensor],
        subset_names: Sequence[str],
        *,
        waited: float,
        memory: Mapping[str, int],
    ) -> StepSums:
        """Add up all ranks; `nll` holds the losses of this rank's batch, as `clm_loss` returns them."""
        own = torch.zeros(1 + len(memory), ranks.world_size, dtype=torch.float64)
        own[:, ranks.rank] = torch.tensor([waited, *memory.values()], dtype=torch.float64)
        sums, counts = subset_sums(nll.cpu(), batch, len(subset_names))
        total_of_ranks = ranks.sum(torch.cat([own.flatten(), sums, counts]))
        of_ranks, sums, counts = torch.split(total_of_ranks, [own.numel(), *[len(subset_names)] * 2])
        waits, *memories = of_ranks.view_as(own)
        by_subset = {
            name: total / count
            for name, total, count in zip(subset_names, sums.tolist(), counts.tolist(), strict=True)
            if count and math.isfinite(total)
        }
        loss = float(sums.sum() / counts.sum())
        sizes = [list(map(int, each.tolist())) for each in memories]
        return cls(loss, by_subset, float(waits.max()), dict(zip(memory, sizes, strict=True)))
