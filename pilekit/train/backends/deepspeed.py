"""DeepSpeed as an engine: its ZeRO stages, mixed precision and clipping, around torch's AdamW.

DeepSpeed controls the step: it clips, skips overflows, and keeps the float32 masters. pilekit sets where steps end
(`set_gradient_accumulation_boundary`). bf16 gradients are summed and sent in float32, and masters start from rank 0's
float32 weights, not from their bfloat16 copies.

Its state is read and written parameter by parameter (`safe_get_full_fp32_param`, ...) as DTensors. Each rank keeps its
part. So checkpoints are pilekit's own: verified, independent of stage and number of ranks, and any engine resumes from
them. Each save gathers weights and optimizer once, and needs memory for this rank's part of them.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import AdamW, Optimizer

from pilekit.errors import PilekitError
from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM
from pilekit.train.backends.package_engine import PackageEngine, naming_backend_file
from pilekit.train.config.backend_file import backend_settings
from pilekit.train.config.sections import TrainConfig
from pilekit.train.step.sharding import whole_parameters, whole_tensor
from pilekit.train.step.step_engine import NO_UPDATE, Update
from pilekit.workers.ranks import Ranks

T = TypeVar("T")

MOMENTS = ("exp_avg", "exp_avg_sq")


class DeepSpeedEngine(PackageEngine):
    """A `StepEngine` around a `deepspeed.DeepSpeedEngine`."""

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        if ranks.device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # must be set before the import
        import deepspeed
        from deepspeed.utils import logger

        for handler in logger.handlers:  # standard output is for results only
            handler.setStream(sys.stderr)
        logger.setLevel(logging.WARNING)
        super().__init__(lm, config, ranks)
        self._deepspeed = deepspeed
        self._stage = config.parallel.zero
        self._parameters = dict(lm.model.named_parameters())
        self._stored = set(lm.model.state_dict())
        masters = {} if config.precision.dtype == "fp32" else {n: p.data for n, p in self._parameters.items()}
        environment = patch.dict(os.environ, LOCAL_RANK=str(ranks.local_rank))
        with environment, redirect_stdout(sys.stderr), naming_backend_file(config):
            self._wrapped, *_ = deepspeed.initialize(
                model=self._step_loss,
                optimizer=self.optimizer,
                config=backend_settings(config, ranks.world_size),
                dist_init_required=False,
            )
        wrapped = self._wrapped
        sizes = wrapped.train_batch_size(), wrapped.gradient_accumulation_steps(), wrapped.dp_world_size
        if sizes != (config.train.global_batch_size, self._micro_batches, ranks.world_size):
            raise PilekitError(
                f'parallel.backend = "deepspeed" would train on {sizes[0]} rows a step, in {sizes[1]} micro-batches '
                f"on {sizes[2]} ranks, not as configured; start the ranks with --nproc-per-node or torchrun"
            )
        for name in list(masters):
            deepspeed.utils.safe_set_full_fp32_param(self._parameters[name], masters.pop(name))
        self._stepped = False
        if self._stage in (1, 2):  # DeepSpeed does not find moments that appear after the first group has stepped
            for part in [part for group in self.optimizer.param_groups for part in group["params"]]:
                moments = {kind: torch.zeros_like(part, requires_grad=False) for kind in MOMENTS}
                self.optimizer.state[part] = {"step": torch.zeros((), device=part.device), **moments}

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """See `StepEngine`."""
        self._wrapped.set_gradient_accumulation_boundary(last)
        loss, nll = self._forward(rows, scale)
        self._wrapped.backward(loss)
        if not last:
            self._wrapped.step()
        return nll

    def update(self, lr: float, nll: Tensor | None = None, *, is_first: bool = False) -> Update:
        """See `StepEngine`."""
        if not self._is_finite(nll):
            return NO_UPDATE
        self._has_gradient = False
        self._set_rate(lr)
        if self._stage == 0:  # DeepSpeed neither reports the norm nor looks for overflows
            gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
            if not math.isfinite(norm):
                self._wrapped.zero_grad()
                return Update(norm, skipped=True)
        self._wrapped.step()
        self._stepped = True
        if self._stage:
            norm = float(self._wrapped.get_global_grad_norm())
        return Update(norm, skipped=not self._wrapped.was_step_applied())

    def state(self) -> tuple[nn.Module, Optimizer]:
        """See `StepEngine`. From stage 1 on, every call gathers the state."""
        if self._stage == 0:
            return super().state()
        read = self._deepspeed.utils
        shares = {
            name: own_share(read.safe_get_full_fp32_param(whole), self.ranks)
            for name, whole in self._parameters.items()
        }
        model = module_of(shares, dict(self.lm.model.named_buffers()), self._stored)
        named = dict(model.named_parameters())
        optimizer = AdamW(list(named.items()), fused=True)
        if self._stepped:
            steps = next(iter(self.optimizer.state.values()))["step"]  # the same for all parameters
            for name, parameter in named.items():
                optimizer.state[parameter] = {"step": steps.clone()}
                for kind in MOMENTS:
                    moment = read.safe_get_full_optimizer_state(self._parameters[name], kind)
                    optimizer.state[parameter][kind] = own_share(moment, self.ranks)
        return model, optimizer

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """See `StepEngine`."""
        if self._stage == 0:
            return super().load(read)
        self._check_between_steps()
        if not self._stepped:  # DeepSpeed makes the optimizer's state in its first step: take a step that moves nothing
            nothing = torch.zeros(1, 2, dtype=torch.long)
            rows = {"input_ids": nothing, "labels": nothing, "position_ids": torch.arange(2)[None]}
            self.forward_backward(rows, scale=0.0, last=True)
            self.update(0.0)
        model, optimizer = self.state()
        result = read(model, optimizer)
        steps = {float(state["step"]) for state in optimizer.state.values()}
        if len(steps) > 1:
            raise self.ranks.error(
                "the checkpoint has parameters that only some of its steps moved, and DeepSpeed cannot resume from it; "
                'set parallel.backend = "native"'
            )
        write = self._deepspeed.utils
        for name, share in model.named_parameters():
            parameter, whole = self._parameters[name], whole_tensor(share.detach())
            write.safe_set_full_fp32_param(parameter, whole)
            with self._deepspeed.zero.GatheredParameters(parameter, modifier_rank=0, enabled=self._stage == 3):
                parameter.data.copy_(whole)
            for kind in MOMENTS:
                state = optimizer.state.get(share)
                moment = torch.zeros_like(whole) if state is None else whole_tensor(state[kind])
                write.safe_set_full_optimizer_state(parameter, moment, kind)
        for state in self.optimizer.state.values():
            state["step"].fill_(max(steps, default=0.0))
        return result

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `StepEngine`."""
        if self._stage == 0:
            return super().full_parameters()
        return whole_parameters(self.lm.model, self.ranks, self._deepspeed.utils.safe_get_full_fp32_param)


def own_share(whole: Tensor, ranks: Ranks) -> Tensor:
    """This rank's copy of its part of a tensor that all ranks hold whole, cut as FSDP2 cuts."""
    return distribute_tensor(whole, ranks.mesh, [Shard(0)], src_data_rank=None) if whole.dim() else whole.clone()


def module_of(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], stored: set[str]) -> nn.Module:
    """A module with these parameters and buffers under their names. The buffers in `stored` are in its state_dict."""
    root = nn.Module()
    # The names have dots, which `register_parameter` and `register_buffer` refuse.
    root._parameters.update({name: nn.Parameter(tensor) for name, tensor in parameters.items()})
    root._buffers.update(buffers)
    root._non_persistent_buffers_set = buffers.keys() - stored
    return root
