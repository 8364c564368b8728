"""The base of both: a `StepEngine` around a package that wraps the model with its loss and torch's AdamW.

Both packages wait for a step's norm, so `update` waits for the losses too and returns what it has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from pilekit.errors import PilekitError, shortened
from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM
from pilekit.train.config.sections import TrainConfig
from pilekit.train.step.losses import StepLoss
from pilekit.train.step.optimizer import build_optimizer
from pilekit.train.step.sharding import send_from_rank0
from pilekit.train.step.step_engine import StepEngine
from pilekit.workers.ranks import Ranks

T = TypeVar("T")


class PackageEngine(StepEngine):
    """The methods of `StepEngine` for a package that leaves parameters and optimizer state where torch keeps them.

    A subclass sets `_wrapped`, the package's model, and defines `forward_backward` and `update`.
    """

    loss_scale = None

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        train = config.train
        self.lm = lm
        self.ranks = ranks
        self._micro_batches = train.global_batch_size // ranks.world_size // train.micro_batch_size
        share_weights(lm.model, ranks)
        self._step_loss = StepLoss(lm, attention=config.data.attention)
        self._step_loss.train()
        self.optimizer = build_optimizer(lm.model, config.optimizer)
        self._wrapped: Any = None
        self._has_gradient = False

    def _forward(self, rows: Mapping[str, Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """(loss, nll) of a micro-batch. The loss is times the number of micro-batches, as the package divides by it."""
        self._has_gradient = True
        here = {name: column.to(self.ranks.device, non_blocking=True) for name, column in rows.items()}
        loss, nll = self._wrapped(here, scale)
        return loss * self._micro_batches, nll

    def _is_finite(self, nll: Tensor | None) -> bool:
        """Whether the losses of all ranks are numbers."""
        return not self.ranks.any(nll is not None and not bool(nll.isfinite().all()))

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """See `StepEngine`; refused in the middle of a step, because the package cannot drop a gradient."""
        self._check_between_steps()
        return read(*self.state())

    def _check_between_steps(self) -> None:
        if self._has_gradient:
            raise self.ranks.error(
                "an earlier fit of this Trainer ended amid a step, whose gradient is still there; make a new Trainer"
            )


@contextmanager
def naming_backend_file(config: TrainConfig) -> Iterator[None]:
    """Name the file of `parallel.backend_config`, if there is one, in an error that the package raises inside."""
    engine, file = config.parallel.backend, config.parallel.backend_config
    try:
        yield
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        if file is None or isinstance(error, PilekitError):
            raise
        why = shortened(" ".join(str(error).split()), 300)
        raise PilekitError(f"{file}: {engine} refuses it: {why}") from error


def share_weights(model: nn.Module, ranks: Ranks) -> None:
    """Move the model to the ranks' device, and copy rank 0's numbers to all ranks."""
    model.to(ranks.device)
    if ranks.world_size > 1:
        for tensor in chain(model.parameters(), model.buffers()):
            send_from_rank0(tensor)
