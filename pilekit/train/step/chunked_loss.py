"""Cross entropy of a language-model head without ever holding all logits.

Logits are the largest tensor of a training step: 8 rows of 2,048 tokens times 50,304 words are 3.3 GB in float32, and
autograd would also keep their log-softmax and its gradient. Here hidden states pass the head some rows at a time. A
chunk's logits are turned at once into their gradient (softmax minus one-hot), in place and a few rows at a time so that
a CPU's cache holds them. That gradient gives the gradients of hidden states, weight and bias. The kept gradients are as
large as the inputs, and nothing is computed twice. A teacher's logits pass in the same chunks, so distillation (Hinton
et al., 2015) never holds all logits of either model.

Measured against `F.cross_entropy` of all logits, for 50,304 words, on two cores, forward and backward. Memory is the
growth of the process without the weight's own gradient:

    head alone, 4,096 tokens             all at once               in chunks
    width 128     fp32, bf16      1.60 s, 1.43 s, 2.4 GiB     1.02 s, 0.47 s, 0.3 GiB
    width 768     fp32, bf16      3.70 s, 1.84 s, 2.4 GiB     3.16 s, 1.54 s, 0.4-0.6 GiB
    whole model
    pythia-14m    4 x 1,024       2.43 s, 1.99 s              1.46 s, 0.79 s
    pythia-160m   2 x 1,024       7.04 s, 3.04 s              6.55 s, 2.66 s
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pilekit.models.logit_transform import UNCHANGED, LogitTransform
from pilekit.train.config.sections import TeacherConfig

ROWS = 1024
"""Rows whose logits are held at a time. Fewer rows are slower in bf16 with a wide head, because each chunk's share of
the weight's gradient is added in float32: at width 768, 128 rows take 2.6 times as long, 512 rows 1.1 times. 2,048 rows
are not faster."""

COMPILED_ROWS = 4096
"""The same if the gradient is made by one compiled kernel, which needs no memory for float32."""

EXACT_LOGITS = 1 << 20
"""Logits held at a time in float32 on a CPU: 4 MiB fit in its cache. Under bf16, six times as many take 1.2-1.4 times
as long."""


@dataclass(frozen=True, slots=True)
class Head:
    """A model's head: `transform(states @ weight.T + bias)` are its logits.

    weight     [vocabulary, width]
    bias       [vocabulary], or None
    transform  the model's change to its head's output
    """

    weight: Tensor
    bias: Tensor | None
    transform: LogitTransform = UNCHANGED


@dataclass(frozen=True, slots=True)
class TeacherOutput:
    """A teacher's predictions of the same targets.

    states    [rows, width of the teacher]: the input of its head
    head      its head, whose vocabulary is the student's
    settings  the temperature, which divides both models' logits, and the weights of the losses. The divergence is also
              multiplied by the temperature squared, which keeps its gradient's size
    """

    states: Tensor
    head: Head
    settings: TeacherConfig

    def logits(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """The teacher's logits of some rows, divided by the temperature."""
        product, bias = torch.mm(self.states[rows], self.head.weight.T).to(dtype), self.head.bias
        return self.head.transform(product if bias is None else product + bias) / self.settings.temperature


@dataclass(frozen=True, slots=True)
class _Settings:
    """The arguments of `chunked_cross_entropy` that have no gradient."""

    transform: LogitTransform
    rows: int
    taught: TeacherOutput | None
    compiled: bool


def chunked_cross_entropy(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    rows: int | None = None,
    taught: TeacherOutput | None = None,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """(sum, each): the cross entropy of the logits of `hidden` against `targets`, summed, and by row.

    With `taught`, the sum is that of both losses times their weights, and `each` is the cross entropy as before.

    hidden     [rows, width]: the input of `head`
    targets    int64 [rows], all below the vocabulary
    rows       rows whose logits are held at a time; results depend on it only by rounding
    compiled   turn logits into their gradient by one compiled kernel, if there is no teacher

    The sum is 0-d and can be differentiated once. `each` [rows] is detached. Both are float32 (float64 for float64
    inputs), like everything between logits and gradients. Matrix products are made in the inputs' type, or in that of
    autocast.
    """
    compiled &= taught is None
    settings = _Settings(head.transform, rows or (COMPILED_ROWS if compiled else ROWS), taught, compiled)
    total, each = _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, targets, settings)  # type: ignore[no-untyped-call]
    return total, each


class _ChunkedCrossEntropy(torch.autograd.Function):
    """See `chunked_cross_entropy`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: _Settings,
    ) -> tuple[Tensor, Tensor]:
        rows, compiled = settings.rows, settings.compiled
        product_type, device = torch.promote_types(hidden.dtype, weight.dtype), hidden.device.type
        if torch.is_autocast_enabled(device):  # then all products are made in its type
            product_type = torch.get_autocast_dtype(device)
        exact_type = torch.promote_types(product_type, torch.float32)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        each = hidden.new_empty(len(hidden), dtype=exact_type)
        total = hidden.new_zeros((), dtype=exact_type)
        grad_hidden = torch.empty_like(hidden, dtype=product_type) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=exact_type) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=exact_type) if wants_bias and bias is not None else None

        states, words = hidden.to(product_type), weight.to(product_type)
        if compiled:  # the kernel always sees whole chunks, or each number of rows would be compiled
            chunk_logits = torch.zeros(rows, len(weight), dtype=product_type, device=hidden.device)
            padded_targets = torch.zeros(-(-len(targets) // rows) * rows, dtype=targets.dtype, device=hidden.device)
            padded_targets[: len(targets)] = targets
        for begin in range(0, len(hidden), rows):
            chunk = slice(begin, begin + rows)
            if compiled:
                logits = torch.mm(states[chunk], words.T, out=chunk_logits[: len(states[chunk])])
                losses = _compiled_gradient()(chunk_logits, bias, padded_targets[chunk], settings.transform, exact_type)
                each[chunk] = losses[: len(logits)]
            else:
                logits = torch.mm(states[chunk], words.T)
                each[chunk], loss = _turn_into_gradient(logits, bias, targets[chunk], exact_type, settings, begin)
                total += loss
            if grad_hidden is not None:
                torch.mm(logits, words, out=grad_hidden[chunk])
            if grad_weight is not None:
                _add_product(grad_weight, logits.T, states[chunk])
            if grad_bias is not None:
                grad_bias += logits.sum(0, dtype=exact_type)
            del logits  # before the next chunk is made

        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.types = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(each)
        return total if settings.taught else each.sum(), each

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, _grad_each: Tensor) -> tuple[Tensor | None, ...]:
        # Multiply in the type of `grad_total`, because a small factor could vanish in bf16 or fp16.
        grads = (
            None if grad is None else (grad.to(grad_total.dtype) * grad_total).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.types, strict=True)
        )
        return (*grads, None, None)  # none of the targets and the settings


@cache
def _compiled_gradient() -> Callable[..., Tensor]:
    return torch.compile(_turn_into_gradient_at_once, dynamic=False)


def _turn_into_gradient_at_once(
    logits: Tensor, bias: Tensor | None, targets: Tensor, transform: LogitTransform, exact_type: torch.dtype
) -> Tensor:
    """`_turn_into_gradient` without a teacher, written so that a compiler makes it pass over the logits twice."""
    exact = logits.to(exact_type)
    exact = transform(exact if bias is None else exact + bias)
    log_sums = exact.logsumexp(-1, keepdim=True)
    each = (log_sums - exact.gather(1, targets[:, None])).squeeze(1)
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    gradient = (exact - log_sums).exp() - is_target.to(exact_type)
    logits.copy_(transform.backward_(gradient, exact))
    return each


def _turn_into_gradient(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    exact_type: torch.dtype,
    settings: _Settings,
    first: int,
) -> tuple[Tensor, Tensor]:
    """Replace `logits` [rows, vocabulary] by their gradient; returns the cross entropy of each row, and the sum.

    On a CPU a few rows at a time, so that intermediate results stay in its cache and float32 costs no memory. `first`
    is the number of the first row.
    """
    transform, taught = settings.transform, settings.taught
    each = logits.new_empty(len(logits), dtype=exact_type)
    total = each.new_zeros(())
    rows = max(1, EXACT_LOGITS // logits.shape[1] if logits.device.type == "cpu" else len(logits))
    for begin in range(0, len(logits), rows):
        part = slice(begin, begin + rows)
        exact = logits[part].to(exact_type)
        exact = transform(exact if bias is None else exact + bias)
        log_shares = torch.log_softmax(exact, dim=-1)
        chosen = targets[part, None]
        each[part] = log_shares.gather(1, chosen).squeeze(1).neg_()
        # The gradient of a cross entropy is softmax minus one-hot: subtract 1 at each row's target.
        gradient = log_shares.exp_().scatter_add_(1, chosen, log_shares.new_full(chosen.shape, -1.0))
        if taught is not None:
            weights = taught.settings
            teacher = taught.logits(slice(first + begin, first + begin + len(exact)), exact_type).log_softmax(-1)
            student = torch.log_softmax(exact / weights.temperature, dim=-1)
            shares = teacher.exp()
            # The divergence sums p (log p - log q), with p the teacher's shares; its gradient is (q - p) / temperature.
            total += weights.kl * weights.temperature**2 * (shares * teacher.sub_(student)).sum()
            total += weights.cross_entropy * each[part].sum()
            gradient.mul_(weights.cross_entropy)
            gradient.add_(student.exp_().sub_(shares), alpha=weights.kl * weights.temperature)
        logits[part] = transform.backward_(gradient, exact)
    return each, total


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cuda" and torch.version.cuda:  # in float32, without rounding the product
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += torch.mm(left, right)
