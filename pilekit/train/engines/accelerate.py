"""accelerate as an engine: its DDP (stage 0), and its FSDP2 on GPUs (stages 2 and 3), around torch's AdamW.

accelerate wraps the model, counts micro-batches (`accumulate`), clips, and in bf16 computes under autocast where it
uses DDP. Its division of the loss by micro-batches is undone: a loss comes normalised by the targets of the whole step.
Stages differ as they do natively: 2 keeps parameters whole from forward to backward, 3 does not, and both send
gradients after every micro-batch. There is no stage 1: accelerate's FSDP2 has no setting for it.

Parameters stay torch's own, whole or DTensors, so the state is that of the model and needs no translation.
"""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError
from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.train.config import TrainConfig
from pilekit.train.engines.protocol import AMID_A_STEP
from pilekit.train.engines.weights import share_weights
from pilekit.train.model.blocks import blocks_of
from pilekit.train.step.engine import Update
from pilekit.train.step.losses import StepLoss
from pilekit.train.step.optimizer import build_optimizer
from pilekit.train.step.sharding import gather_rest, release, whole_parameters

T = TypeVar("T")


class AccelerateEngine:
    """A `TrainEngine` around an `accelerate.Accelerator`."""

    loss_scale = None

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]
        from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-not-found, unused-ignore]
        from accelerate.utils import (  # type: ignore[import-not-found, unused-ignore]
            DistributedType,
            FullyShardedDataParallelPlugin,
            GradientAccumulationPlugin,
        )

        self.lm = lm
        self._ranks, self._clip_norm = ranks, config.train.clip_norm
        train, stage = config.train, config.parallel.zero
        self._micro_batches = train.global_batch_size // ranks.world_size // train.micro_batch_size
        plugin = None
        if stage and ranks.world_size > 1:
            plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2,
                reshard_after_forward=stage == 3,
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=sorted({type(block).__name__ for block in blocks_of(lm.model)}),
                state_dict_type="SHARDED_STATE_DICT",
                cpu_ram_efficient_loading=False,
            )
        AcceleratorState._reset_state(
            reset_partial_state=True
        )  # of an earlier one in this process, whose settings would count
        GradientState._reset_state()
        accelerator = self._accelerator = Accelerator(
            cpu=ranks.device.type == "cpu",
            mixed_precision="bf16" if config.precision.dtype == "bf16" else "no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=self._micro_batches, sync_with_dataloader=False, sync_each_batch=plugin is not None
            ),
            fsdp_plugin=plugin,
        )
        shards = accelerator.distributed_type == DistributedType.FSDP
        if accelerator.num_processes != ranks.world_size or shards != (plugin is not None):
            raise PilekitError(
                f'parallel.engine = "accelerate": it would train with {accelerator.distributed_type} on '
                f"{accelerator.num_processes} of {ranks.world_size} ranks; start them with --nproc-per-node or torchrun"
            )
        share_weights(lm.model, ranks)
        step_loss = StepLoss(lm, attention=config.data.attention)
        step_loss.train()
        self._adamw = build_optimizer(lm.model, config.optimizer)
        self._pending = False
        self._step_loss, self._optimizer = accelerator.prepare(step_loss, self._adamw)
        if plugin is not None:
            register_fsdp_forward_method(self._step_loss, "gather")
        if isinstance(self._step_loss, DistributedDataParallel):
            atexit.register(_let_go, weakref.ref(self._step_loss))

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """See `TrainEngine`."""
        self._pending = True
        here = {name: column.to(self._ranks.device, non_blocking=True) for name, column in rows.items()}
        with self._accelerator.accumulate(self._step_loss):
            assert self._accelerator.sync_gradients == last, "accelerate and the trainer count alike"
            loss, nll = self._step_loss(here, scale)
            self._accelerator.backward(loss * self._micro_batches)  # which divides by as much
        return nll  # type: ignore[no-any-return]

    def update(self, lr: float) -> Update:
        """See `TrainEngine`."""
        self._pending = False
        total: Any = self._accelerator.clip_grad_norm_(self._step_loss.parameters(), self._clip_norm)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if finite := math.isfinite(norm):
            for group in self._adamw.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)
            self._optimizer.step()
        self._optimizer.zero_grad()
        return Update(norm, skipped=not finite)

    def state(self) -> tuple[nn.Module, Optimizer]:
        """See `TrainEngine`: the model and its optimizer."""
        return self.lm.model, self._adamw

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """See `TrainEngine`."""
        if self._pending:
            raise self._ranks.error(AMID_A_STEP)
        return read(*self.state())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `TrainEngine`."""
        self._step_loss.eval()
        try:
            with torch.no_grad(), self._accelerator.autocast():
                gather_rest(self._step_loss)
                yield
        finally:
            release(self._step_loss)
            self._step_loss.train()

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainEngine`."""
        yield from whole_parameters(self.lm.model, self._ranks)


def _let_go(wrapper: weakref.ref[DistributedDataParallel]) -> None:
    """At the end of the process, should a script still hold its Trainer: have DDP give back the process group.

    DDP's reducer holds the group too, and would end its threads without letting go of Python's lock. A thread that
    waits for the lock, to give back the last gradients, would never end, and so neither would the process.
    """
    if (ddp := wrapper()) is not None:
        for name in ("logger", "reducer", "process_group"):  # in this order: Python's own hold must be the last
            vars(ddp).pop(name)
