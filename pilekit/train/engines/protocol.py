"""`TrainEngine`: what the trainer asks of whoever makes the steps of a run.

    engine = build_engine(lm, config, ranks)                            # takes the model over
    for number, rows in enumerate(micro_batches):
        nll = engine.forward_backward(rows, scale=..., last=number == count - 1)
    update = engine.update(lr)                                          # clips, steps, forgets the gradient
    model, optimizer = engine.state()                                   # for a checkpoint
    progress = engine.load(lambda model, optimizer: ...)                # from one
    weights = dict(engine.full_parameters())                            # for export

Everything else (data, schedule, checkpoints, metrics, when to stop) is the trainer's, whatever the engine. All ranks
make the same calls in the same order. Rank 0's weights are everyone's.

State goes through a model and an optimizer of torch, whose tensors have the names and shapes of the model, be it whole
or as DTensors. So there is one format of checkpoint, and any engine goes on from any other's.
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

AMID_A_STEP = "an earlier fit of this Trainer has ended amid a step, whose gradient is still there; make a new Trainer"
"""Why an adapter, which cannot take back what the package has begun, loads no checkpoint."""


class TrainEngine(Protocol):
    """A model cut over the ranks, and its optimizer."""

    @property
    def lm(self) -> CausalLM | MaskedLM:
        """The model; its parameters may lie anywhere, in any type."""

    @property
    def loss_scale(self) -> LossScale | None:
        """That of fp16; None in other types."""

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """Add the gradient of one micro-batch of this rank; returns the loss of each target, float32, detached.

        rows   a batch's columns, on any device
        scale  ranks / targets of the whole step on all ranks: gradients are then averaged over ranks
        last   whether the step's update comes next
        """

    def update(self, lr: float) -> Update:
        """Move the weights by the gradient, clipped to `train.clip_norm`, and forget it.

        Each group's learning rate is `lr` times its "lr_scale". A gradient that is not finite moves nothing.
        """

    def state(self) -> tuple[nn.Module, Optimizer]:
        """A model and an AdamW, its groups with `param_names`, that hold the state as it is now, masters in float32."""

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """Have `read` put a checkpoint into such a pair, and go on from what it then holds; what it returns."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Within: no dropout, no gradient, and parts of `lm` may be called, by all ranks in lock-step."""

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, float32 on the CPU) of each parameter and stored buffer: whole on rank 0, empty elsewhere."""
