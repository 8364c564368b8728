"""`StepEngine`: one optimizer step of a model on any number of ranks, in any precision.

    for number, rows in enumerate(micro_batches):
        nll = engine.forward_backward(rows, scale=ranks.world_size / targets_of_step, last=number == count - 1)
    pending = engine.update(lr, nll_of_step)                            # clips, steps, resets the gradient
    update = pending.result()                                           # best while the next step runs
    model, optimizer = engine.state()                                   # for a checkpoint
    progress = engine.load(lambda model, optimizer: ...)                # from a checkpoint
    weights = dict(engine.full_parameters())                            # for export

The trainer does everything else (data, schedule, checkpoints, metrics), and calls another package's engine in the same
way (backends/package_engine.py). All ranks make the same calls in the same order, and start with rank 0's weights.
State passes through a model and an optimizer of torch, whose tensors have the model's names and shapes, whole or as
DTensors. So there is one checkpoint format for all backends.

Sharding averages gradients over ranks. So each rank's loss is its sum over targets, times the number of ranks, divided
by the targets of the whole step on all ranks. The result is the gradient of the mean over all targets, however unevenly
ranks and micro-batches share them. `update` removes the loss scale and clips in one multiplication.

Nothing in a step waits for the device. The norm, the factor of clipping, the loss scale and the decision whether to
move at all stay there as tensors: if a loss or the gradient's norm is not finite, the optimizer runs and leaves
weights, moments, counters and means as they are. The norm is the same number on all ranks, so all ranks skip a step or
none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM
from pilekit.models.packed_rows import has_several_documents, packed_rows
from pilekit.models.transformer_blocks import blocks_of
from pilekit.train.config.sections import AttentionKernel, Objective, TrainConfig
from pilekit.train.model.varlen import VARLEN, Cuts
from pilekit.train.step.arriving import Arriving
from pilekit.train.step.compilations import Compilations
from pilekit.train.step.loss_scale import LossScale
from pilekit.train.step.losses import StepLoss, places_of_targets
from pilekit.train.step.optimizer import build_optimizer, measured_step, sum_of_squares, update_means
from pilekit.train.step.sharding import (
    DTYPES,
    before_micro_batch,
    gather_rest,
    is_first_copy,
    own_part,
    release,
    shard,
    whole_parameters,
)
from pilekit.train.step.teacher import Teacher
from pilekit.workers.ranks import Ranks

T = TypeVar("T")

_ATEN = torch.ops.aten
KEPT = {
    operation.default
    for operation in (
        _ATEN.mm,
        _ATEN.addmm,
        _ATEN.bmm,
        _ATEN.baddbmm,
        _ATEN._scaled_dot_product_flash_attention,
        _ATEN._scaled_dot_product_efficient_attention,
        _ATEN._scaled_dot_product_cudnn_attention,
        _ATEN._scaled_dot_product_flash_attention_for_cpu,
    )
}


@dataclass(frozen=True, slots=True)
class Update:
    """What `StepEngine.update` has done.

    grad_norm    norm of the whole gradient before clipping; may be infinite or NaN. NaN if a loss is not finite, but
                 in fp16, where the gradient alone counts
    skipped      nothing was changed, because `grad_norm` is not finite
    update_norm  norm of the change to the weights, or None if nothing changed, or if it was not measured
    at_floor     it was skipped at the lowest loss scale, so no later step would do better
    """

    grad_norm: float
    skipped: bool
    update_norm: float | None = None
    at_floor: bool = False

    def result(self) -> Update:
        """Itself: an engine that has waited for its step returns this instead of a `PendingUpdate`."""
        return self


NO_UPDATE = Update(grad_norm=math.nan, skipped=True)
"""The update of a step that has no token to predict, or whose loss is not a number."""


class PendingUpdate:
    """An update that the device may still be making.

    figures   float64: the sum of squares of the gradient, its loss scale, the sum of squares of the change, and
              whether the step is the run's end
    """

    def __init__(self, figures: Tensor, device: torch.device) -> None:
        self._figures = Arriving([figures], device)

    def result(self) -> Update:
        """The update, once it is made."""
        squares, loss_scale, moved, at_floor = self._figures.read()[0].tolist()
        norm = math.sqrt(squares) / loss_scale  # a root of torch may be wrong in the last bit
        skipped = not math.isfinite(norm)
        return Update(norm, skipped, None if skipped else math.sqrt(moved), bool(at_floor))


class StepEngine:
    """The model `lm`, sharded over `ranks` in place, and its optimizer.

    attention      how the model attends, which model/attention.py changes
    compilations   counted if `parallel.compile` asks for any
    loss_scale     None unless precision.dtype is "fp16"
    """

    attention: AttentionKernel = "sdpa"
    compilations: Compilations | None = None
    loss_scale: LossScale | None
    _buffers: Sequence[tuple[Tensor, Tensor]] = ()  # stored ones, and their values after the last update

    def __init__(
        self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks, teacher: Teacher | None = None
    ) -> None:
        parallel, precision = config.parallel, config.precision
        self.lm = lm
        self.ranks = ranks
        self._stage = parallel.zero
        self._clip_norm = config.train.clip_norm
        self._separates = config.data.attention == "document"
        self._step_loss = StepLoss(
            lm, attention=config.data.attention, teacher=teacher, compiled=parallel.compile == "step"
        )
        self._cuts = Cuts(config.data.attention)
        blocks, stored = blocks_of(lm.model), set(lm.model.state_dict())
        recompute_activations(lm.model, parallel.activation_checkpoint)
        if parallel.compile:
            self.compilations = Compilations()
            for block in blocks:
                block.compile()
        shard(self._step_loss, blocks, ranks, parallel, DTYPES[precision.dtype])
        self._step_loss.train()
        self._is_first_copy = all(map(is_first_copy, lm.model.parameters()))
        self.optimizer: Optimizer = build_optimizer(lm.model, config.optimizer, config.train.ema)
        self._home = own_part(next(lm.model.parameters())).device  # the CPU if parameters are offloaded
        self.loss_scale = LossScale(precision, self._home) if precision.dtype == "fp16" else None
        self._buffers = [(b, b) for name, b in lm.model.named_buffers() if name in stored]

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """Add the gradient of one micro-batch of this rank; returns the loss of each target.

        rows   a batch's columns, on any device
        scale  ranks / targets of the whole step on all ranks, because gradients are averaged over ranks
        last   this is the last micro-batch before `update`

        The losses are float32, from `StepLoss`, and stay on the device: nothing waits for them.
        """
        if self.compilations is not None:
            # Without effect unless torch's own setting asks for CUDA graphs.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        before_micro_batch(self._step_loss, self._stage, last=last)
        # Without a mask, rows of one document each would be compiled apart.
        is_compiled = self.compilations is not None
        several = self._separates and (is_compiled or has_several_documents(rows["position_ids"]))
        with packed_rows(several):
            loss, nll = self._step_loss(self._on_device(rows), scale if self.loss_scale is None else 1.0)
        if self.loss_scale is not None:  # outside of the module, because FSDP2 would pass a tensor on in fp16
            loss = loss * (self.loss_scale.value * scale).to(loss.dtype)
        loss.backward()
        if self.compilations is not None:
            self.compilations.end_micro_batch(last=last)
        return nll  # type: ignore[no-any-return]

    def _on_device(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns on the ranks' device, with the places that a GPU would have to be asked for."""
        objective: Objective = "mlm" if isinstance(self.lm, MaskedLM) else "clm"
        columns = {**rows, "places": places_of_targets(rows, objective)}
        if self.attention == VARLEN:
            columns["cuts"] = self._cuts.find(rows)
        if self.ranks.device.type != "cpu":
            # Only pinned memory is sent without waiting for earlier work.
            columns = {
                name: (column.pin_memory() if column.device.type == "cpu" else column).to(
                    self.ranks.device, non_blocking=True
                )
                for name, column in columns.items()
            }
        if self.compilations is not None and "cuts" in columns:
            torch._dynamo.maybe_mark_dynamic(columns["cuts"], 0)  # else each number of cuts would be compiled
        return columns

    def update(self, lr: float, nll: Tensor | None = None, *, is_first: bool = False) -> Update | PendingUpdate:
        """Move the weights by the gradient, clipped to `train.clip_norm`, and reset the gradient.

        nll       the losses of this rank's targets. If one of any rank is not finite, nothing moves
        is_first  no step before this has moved the weights

        Each group's learning rate is `lr` times its "lr_scale". A gradient that is not finite moves nothing and lowers
        the loss scale of fp16. In fp16 only the gradient counts, as with any overflow.
        """
        return PendingUpdate(self.launch_update(lr, nll, is_first=is_first), self._home)

    @torch.no_grad()
    def launch_update(self, lr: float, nll: Tensor | None = None, *, is_first: bool = False) -> Tensor:
        """`update` without its result, which `PendingUpdate` reads from these numbers."""
        gradients = [own_part(p.grad) for p in self.lm.model.parameters() if p.grad is not None]
        share = self._share(sum_of_squares(gradients))
        loss_scale = torch.ones_like(share) if self.loss_scale is None else self.loss_scale.value
        if self.loss_scale is None and nll is not None:
            share = torch.where(nll.isfinite().all().to(self._home), share, math.nan)
        squares = self._total(share)
        norm = squares.sqrt() / loss_scale
        skips = norm.isfinite().logical_not()

        # In float64, as a number of Python has.
        factor = (torch.full_like(norm, self._clip_norm) / (norm + 1e-6)).clamp(max=1.0) / loss_scale
        if gradients := [gradient for gradient in gradients if gradient.numel()]:
            torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        self._set_rate(lr)
        moved = self._total(self._share(measured_step(self.optimizer, skips)))
        update_means(self.optimizer, skips, is_first=is_first)
        self.optimizer.zero_grad()
        at_floor = torch.zeros_like(skips) if self.loss_scale is None else self.loss_scale.update(skips)
        self._buffers = [(buffer, buffer.clone()) for buffer, _ in self._buffers]
        return torch.stack([squares, loss_scale, moved, at_floor.double()])

    @torch.no_grad()
    def drop_gradient(self) -> None:
        """Undo each `forward_backward` since the last update."""
        self.optimizer.zero_grad()
        for buffer, before in self._buffers:
            buffer.copy_(before)

    def _set_rate(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)

    def _share(self, squares: Tensor) -> Tensor:
        """This rank's part of a sum of squares over all ranks: nothing if another rank has the same numbers."""
        squares = squares.to(self._home)
        return squares if self._is_first_copy else torch.zeros_like(squares)

    def _total(self, share: Tensor) -> Tensor:
        """The sum of all ranks' shares: 0-d, equal on all ranks."""
        return self.ranks.sum(share.reshape(1)).squeeze(0)

    def state(self) -> tuple[nn.Module, Optimizer]:
        """The model, and an optimizer with `param_names` in its groups. Their float32 tensors are the whole state."""
        return self.lm.model, self.optimizer

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """Let `read` put a checkpoint into `state`, and return its result."""
        self.optimizer.zero_grad()
        return read(*self.state())

    def forget(self) -> None:
        """`drop_gradient`, even if a micro-batch failed."""
        release(self._step_loss)
        self.drop_gradient()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside: no dropout, no gradients, and all ranks may call parts of `lm` in lock-step."""
        self._step_loss.eval()
        try:
            with torch.no_grad():
                gather_rest(self._step_loss)
                yield
        finally:
            release(self._step_loss)
            self._step_loss.train()

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, values) of each parameter and stored buffer: see `whole_parameters`."""
        return whole_parameters(self.lm.model, self.ranks)

    def averaged_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The same with the running mean of each trained parameter, if `train.ema` asks for it."""
        state = self.optimizer.state
        return whole_parameters(self.lm.model, self.ranks, lambda parameter: state[parameter].get("ema", parameter))


def recompute_activations(model: PreTrainedModel, kind: Literal["none", "full", "selective"]) -> None:
    """Make the blocks of `model` compute activations again in the backward pass, instead of keeping them.

    "full" keeps only a block's input. "selective" keeps the results of matrix products and of attention, which take
    most of the time, and computes norms, activation functions and rotations again. The models of transformers do this
    themselves, around the body of a block, so parameter names do not change and sharding stays outside. Random numbers
    are drawn again as before, so results do not change. Raises PilekitError if the model does not support it.
    """
    if kind == "none":
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    module: Any = model
    # The second name is that of older versions of transformers.
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    try:
        enable(settings)
    except ValueError as error:
        raise PilekitError(
            f"a {shortened(model.config.model_type, 60)} model cannot compute its activations again; set "
            'parallel.activation_checkpoint = "none"'
        ) from error


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
