"""`TrainEngine`: the calls with which the trainer makes its steps.

    engine = build_engine(lm, config, ranks)                            # takes the model over
    for number, rows in enumerate(micro_batches):
        nll = engine.forward_backward(rows, scale=..., last=number == count - 1)
    update = engine.update(lr)                                          # clips, steps, resets the gradient
    model, optimizer = engine.state()                                   # for a checkpoint
    progress = engine.load(lambda model, optimizer: ...)                # from a checkpoint
    weights = dict(engine.full_parameters())                            # for export

The trainer does everything else (data, schedule, checkpoints, metrics), whatever the engine. All ranks make the same
calls in the same order, and start with rank 0's weights. State passes through a model and an optimizer of torch, whose
tensors have the model's names and shapes, whole or as DTensors. So there is one checkpoint format for all engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.train.step.engine import Update
from pilekit.train.step.loss_scale import LossScale

T = TypeVar("T")


class TrainEngine(Protocol):
    """A model shared by ranks, and its optimizer."""

    @property
    def lm(self) -> CausalLM | MaskedLM:
        """The model; its parameters may lie anywhere, in any type."""

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of fp16; None in other types."""

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """Add the gradient of one micro-batch of this rank; returns the loss of each target, float32, detached.

        rows   a batch's columns, on any device
        scale  ranks / targets of the whole step on all ranks, because gradients are averaged over ranks
        last   this is the last micro-batch before `update`
        """

    def update(self, lr: float) -> Update:
        """Move the weights by the gradient, clipped to `train.clip_norm`, and reset the gradient.

        Each group's learning rate is `lr` times its "lr_scale". A gradient that is not finite moves nothing.
        """

    def state(self) -> tuple[nn.Module, Optimizer]:
        """A model and an AdamW with `param_names` in its groups, which hold the current state in float32."""

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """Let `read` put a checkpoint into such a pair, take over its content, and return the result of `read`."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Inside: no dropout, no gradients, and all ranks may call parts of `lm` in lock-step."""

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, float32 on the CPU) of each parameter and stored buffer: whole on rank 0, empty elsewhere."""
