"""The loss of a micro-batch: causal or masked language modelling, and the loss of a step by subset over all ranks.

Labels follow Hugging Face: `labels[i]` belongs to token i, and -100 means no target. With "clm" the model's output at
i - 1 is compared with `labels[i]`, so a row's first label is never used. With "mlm" labels are the chosen tokens, each
predicted at its own place.

A causal model gets token ids and positions, no attention_mask, and `use_cache=False`. Only then does transformers keep
documents apart where positions begin at 0 again. With an attention_mask, even one of ones, or with the default cache, a
document attends to earlier documents in its row.

Ranks see different rows, so each knows only a part of the step. `step_sums` sends everything in one message, as numbers
to add: a loss is a sum and a count, and each rank has its own place for its seconds and bytes. Losses are summed in
float64, in the order of ranks, so all ranks get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM, inputs_by_document, states_at
from pilekit.train.config.sections import Attention, Objective
from pilekit.train.model.varlen import cuts_as_inputs
from pilekit.train.step.chunked_loss import Head, TeacherOutput, chunked_cross_entropy
from pilekit.workers.ranks import Ranks

IGNORED = -100


class Lessons(Protocol):
    """The method of a `Teacher` that the loss calls."""

    def teacher_output(self, batch: Mapping[str, Tensor], places: Tensor) -> AbstractContextManager[TeacherOutput]:
        """The teacher's predictions at these flat places of the batch's targets."""


class StepLoss(nn.Module):
    """The model with its loss as one module, which a micro-batch calls.

    attention  "document": a token sees its own document; "causal": everything before it in its row; "row": everything
               in its row but padding
    teacher    a model whose predictions of the same targets are part of the loss
    compiled   compile the part of the loss after the head

    Sharding gathers a module's parameters only during its `forward`, and the loss reads the head's weight itself, to
    avoid holding all logits. So the loss is computed inside this `forward`, around the whole model. It also gathers all
    parameters outside of blocks (embeddings, final norm, head), once for forward and backward, with tied weights
    together.
    """

    def __init__(
        self,
        lm: CausalLM | MaskedLM,
        *,
        attention: Attention,
        teacher: Lessons | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.model = lm.model
        self._lm, self._attention, self._teacher, self._compiled = lm, attention, teacher, compiled

    def forward(self, rows: Mapping[str, Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """(loss, nll) of predicting each token from the tokens before it, or the chosen tokens of a masked model.

        loss   0-d, differentiable: `scale` times the sum over the targets of `rows`. With `scale` 1 / targets of a
               whole step, the gradients of its micro-batches add up to the gradient of the step's mean loss
        nll    detached, 0 without a target. Of a causal model [rows, seq_len - 1]: entry [:, i] belongs to token i + 1.
               Of a masked model [rows, seq_len]: entry [:, i] belongs to token i

        Both are float32 (float64 for a float64 model). The head runs only on positions that predict a target.
        """
        lm, attention, teacher = self._lm, self._attention, self._teacher
        is_masked = isinstance(lm, MaskedLM)
        targets = _targets(rows, "mlm" if is_masked else "clm")
        if lm.transform is None:
            logits = cast("Any", lm.model)(**_inputs(lm, rows, attention)).logits
            logits = (logits if is_masked else logits[:, :-1]).to(torch.promote_types(logits.dtype, torch.float32))
            nll = functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
            return nll.sum() * scale, nll.detach()
        places = rows["places"] if "places" in rows else places_of_targets(rows, "mlm" if is_masked else "clm")
        states, chosen = head_states(lm, rows, attention, places), targets.flatten()[places]
        head = Head(lm.head.weight, lm.head.bias, lm.transform)
        with nullcontext() if teacher is None else teacher.teacher_output(rows, places) as taught:
            total, each = chunked_cross_entropy(states, head, chosen, taught=taught, compiled=self._compiled)
        if taught is not None and taught.settings.cosine:
            likeness = functional.cosine_similarity(states.to(total.dtype), taught.states.to(total.dtype), dim=-1)
            total = total + taught.settings.cosine * (1 - likeness).sum()
        return total * scale, each.new_zeros(targets.numel()).index_copy_(0, places, each).view(targets.shape)

    def gather(self, _nothing: None) -> None:
        """Only gather the parameters that belong to no block, as before a forward."""


def head_states(lm: CausalLM | MaskedLM, batch: Mapping[str, Tensor], attention: Attention, places: Tensor) -> Tensor:
    """[places, width]: the input of the model's head at these flat places of its targets."""
    inputs = _inputs(lm, batch, attention)
    if isinstance(lm, MaskedLM):
        return states_at(lm, inputs, places)
    hidden: Tensor = lm.trunk(**inputs).last_hidden_state
    return hidden[:, :-1].flatten(0, 1).index_select(0, places)


def _inputs(lm: CausalLM | MaskedLM, batch: Mapping[str, Tensor], attention: Attention) -> dict[str, Any]:
    """The arguments of the model for `batch`."""
    if isinstance(lm, CausalLM):
        positions = {"position_ids": batch["position_ids"]} if attention == "document" else {}
        cuts = cuts_as_inputs(batch["cuts"], batch["input_ids"].shape[1]) if "cuts" in batch else {}
        return {"input_ids": batch["input_ids"], "use_cache": False, **positions, **cuts}
    if attention == "document":
        return inputs_by_document(lm, batch)
    is_token = batch["doc_ids"] >= 0
    is_visible = is_token | ~is_token.any(1, keepdim=True)  # a softmax over nothing would be NaN
    return {"input_ids": batch["input_ids"], "attention_mask": is_visible.long()}


def _targets(batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """The labels to predict: all for "mlm", without each row's first for "clm"."""
    return batch["labels"] if objective == "mlm" else batch["labels"][:, 1:]


def places_of_targets(batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """int64, increasing: the flat places of the labels that are predicted. On a GPU this waits for its work."""
    return (_targets(batch, objective).flatten() != IGNORED).nonzero().squeeze(1)


def count_targets(batch: Mapping[str, Tensor], objective: Objective = "clm") -> int:
    """The number of tokens of the batch that are predicted."""
    return int((_targets(batch, objective) != IGNORED).sum())


def subset_sums(nll: Tensor, batch: Mapping[str, Tensor], subsets: int) -> tuple[Tensor, Tensor]:
    """(sum of losses, number of targets) of each subset, float64 [subsets] each.

    nll   of the batch's rows, from `StepLoss`, on the CPU

    A target belongs to the subset of the predicted token. The last column of `nll` is a row's last token.
    """
    columns = slice(batch["labels"].shape[1] - nll.shape[1], None)
    is_target = batch["labels"][:, columns] != IGNORED
    subset = batch["subset_ids"][:, columns][is_target]
    sums = subset.bincount(nll[is_target].double(), minlength=subsets).double()  # without targets, torch returns int64
    return sums, subset.bincount(minlength=subsets).double()


@dataclass(frozen=True, slots=True)
class StepSums:
    """A step over all ranks, added up by `step_sums`.

    loss       mean over the step's targets, in nats; may be infinite, and is NaN if there is no target
    by_subset  the same for each subset with a target, in the order of the names; finite ones only
    waited     seconds that the slowest rank waited for data
    memory     bytes of each rank, by kind of memory: "CPU", and "GPU" if ranks compute there
    documents  the documents of each subset that the run has begun
    """

    loss: float
    by_subset: dict[str, float]
    waited: float
    memory: dict[str, list[int]]
    documents: dict[str, float]


def step_sums(
    ranks: Ranks,
    nll: Tensor,
    batch: Mapping[str, Tensor],
    subset_names: Sequence[str],
    waited: float,
    memory: Mapping[str, int],
    documents: Mapping[str, int],
) -> StepSums:
    """Add up all ranks.

    nll             the losses of this rank's `batch`, as `StepLoss` returns them
    waited, memory  this rank's seconds and bytes
    documents       of each subset, that this rank has begun since the run did
    """
    by_rank = torch.zeros(1 + len(memory), ranks.world_size, dtype=torch.float64)
    by_rank[:, ranks.rank] = torch.tensor([waited, *memory.values()], dtype=torch.float64)
    sums, counts = subset_sums(nll.cpu(), batch, len(subset_names))
    # One message for everything: each rank adds to its own column of `by_rank`, where other ranks have 0.
    begun = torch.tensor([documents.get(name, 0) for name in subset_names], dtype=torch.float64)
    total_of_ranks = ranks.sum(torch.cat([by_rank.flatten(), sums, counts, begun]))
    by_rank_sums, sums, counts, begun = torch.split(total_of_ranks, [by_rank.numel(), *[len(subset_names)] * 3])
    waits, *memories = by_rank_sums.view_as(by_rank)
    by_subset = {
        name: total / count
        for name, total, count in zip(subset_names, sums.tolist(), counts.tolist(), strict=True)
        if count and math.isfinite(total)
    }
    loss = float(sums.sum() / counts.sum())
    sizes = [list(map(int, sizes.tolist())) for sizes in memories]
    memory_by_kind, all_begun = (
        dict(zip(memory, sizes, strict=True)),
        dict(zip(subset_names, begun.tolist(), strict=True)),
    )
    return StepSums(loss, by_subset, float(waits.max()), memory_by_kind, all_begun)
