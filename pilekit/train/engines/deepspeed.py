"""DeepSpeed as an engine: its ZeRO stages, its mixed precision, its clipping, around torch's AdamW.

DeepSpeed decides within a step: it clips, finds overflows and skips them, and keeps the float32 masters. Told to it are
the ends of steps (`set_gradient_accumulation_boundary`) and the loss as it is to be summed: normalised by the targets
of the whole step, so its own division by micro-batches is undone. bf16 gradients are added up and sent in float32,
and masters begin with rank 0's float32 weights, not with what bfloat16 leaves of them.

Its state goes in and out parameter by parameter, through the functions it has for that (`safe_get_full_fp32_param`,
...), as DTensors of which each rank keeps its part. So checkpoints are pilekit's own: verified, the same whatever the
stage and the number of ranks, and any engine goes on from them. What that costs is one gathering of weights and
optimizer per save, and room for this rank's part of them.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError
from pilekit.evaluate.masked.model import MaskedLM
from pilekit.evaluate.model.causal import CausalLM
from pilekit.train.config import TrainConfig
from pilekit.train.engines.protocol import AMID_A_STEP
from pilekit.train.engines.weights import module_of, own_share, share_weights
from pilekit.train.step.engine import Update
from pilekit.train.step.losses import StepLoss
from pilekit.train.step.optimizer import build_optimizer
from pilekit.train.step.sharding import whole_parameters

T = TypeVar("T")

MOMENTS = ("exp_avg", "exp_avg_sq")


def deepspeed_config(config: TrainConfig, world_size: int) -> dict[str, Any]:
    """What `deepspeed.initialize` is given: the part of `config` that DeepSpeed decides over."""
    train, parallel = config.train, config.parallel
    zero: dict[str, Any] = {"stage": parallel.zero}
    if parallel.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if parallel.zero == 3:
            zero["offload_param"] = {"device": "cpu"}
    made = {
        "train_batch_size": train.global_batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": train.global_batch_size // world_size // train.micro_batch_size,
        "gradient_clipping": 0.0 if math.isinf(train.clip_norm) else train.clip_norm,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW steps there too
        "steps_per_print": None,
    }
    if config.precision.dtype == "bf16":
        made["bf16"] = {"enabled": True, "check_grad_overflow": True}
        made["data_types"] = {"grad_accum_dtype": "fp32"}
        made["communication_data_type"] = "fp32"
    return made


class DeepSpeedEngine:
    """A `TrainEngine` around a `deepspeed.DeepSpeedEngine`."""

    loss_scale = None

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        if ranks.device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when it is imported
        import deepspeed  # type: ignore[import-not-found, unused-ignore]
        from deepspeed.utils import logger  # type: ignore[import-not-found, unused-ignore]

        for handler in logger.handlers:  # standard output is for results, and it prints there too
            handler.setStream(sys.stderr)
        logger.setLevel(logging.WARNING)
        self.lm = lm
        self._deepspeed = deepspeed
        self._ranks, self._stage = ranks, config.parallel.zero
        share_weights(lm.model, ranks)
        self._parameters = dict(lm.model.named_parameters())
        self._stored = set(lm.model.state_dict())
        masters = {} if config.precision.dtype == "fp32" else {n: p.data for n, p in self._parameters.items()}
        self._step_loss = StepLoss(lm, attention=config.data.attention)
        self._step_loss.train()
        self._adamw = build_optimizer(lm.model, config.optimizer)
        settings = deepspeed_config(config, ranks.world_size)
        with _launched(ranks), redirect_stdout(sys.stderr):
            self._engine, *_ = deepspeed.initialize(
                model=self._step_loss, optimizer=self._adamw, config=settings, dist_init_required=False
            )
        self._micro_batches = settings["gradient_accumulation_steps"]
        told = self._engine.train_batch_size(), self._engine.gradient_accumulation_steps(), self._engine.dp_world_size
        if told != (config.train.global_batch_size, self._micro_batches, ranks.world_size):
            raise PilekitError(
                f'parallel.engine = "deepspeed": it would train on {told[0]} rows a step, in {told[1]} micro-batches '
                f"on {told[2]} ranks, not as it was told; start the ranks with --nproc-per-node or torchrun"
            )
        for name in list(masters):
            deepspeed.utils.safe_set_full_fp32_param(self._parameters[name], masters.pop(name))
        self._pending = self._stepped = False
        if self._stage in (1, 2):  # what is not there when the first group has stepped, DeepSpeed will not find later
            for part in [part for group in self._adamw.param_groups for part in group["params"]]:
                moments = {kind: torch.zeros_like(part, requires_grad=False) for kind in MOMENTS}
                self._adamw.state[part] = {"step": torch.zeros((), device=part.device), **moments}

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """See `TrainEngine`."""
        self._pending = True
        self._engine.set_gradient_accumulation_boundary(last)
        here = {name: column.to(self._ranks.device, non_blocking=True) for name, column in rows.items()}
        loss, nll = self._engine(here, scale)
        self._engine.backward(loss * self._micro_batches)  # which divides by as much
        if not last:
            self._engine.step()
        return nll  # type: ignore[no-any-return]

    def update(self, lr: float) -> Update:
        """See `TrainEngine`."""
        self._pending = False
        for group in self._adamw.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        if self._stage == 0:  # which clips without a word, and without a look
            gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
            if not math.isfinite(norm):
                self._engine.zero_grad()
                return Update(norm, skipped=True)
        self._engine.step()
        self._stepped = True
        if self._stage:
            norm = float(self._engine.get_global_grad_norm())
        return Update(norm, skipped=not self._engine.was_step_applied())

    def state(self) -> tuple[nn.Module, Optimizer]:
        """See `TrainEngine`: in stage 0 the model and its optimizer, else what is gathered here and now."""
        if self._stage == 0:
            return self.lm.model, self._adamw
        shares = {name: own_share(self._whole(name), self._ranks) for name in self._parameters}
        model = module_of(shares, self.lm.model.named_buffers(), self._stored)
        named = dict(model.named_parameters())
        optimizer = AdamW(list(named.items()), fused=True)
        for state in list(self._adamw.state.values())[: self._stepped]:  # as many steps for all
            for name, parameter in named.items():
                moments = {kind: own_share(self._whole(name, kind), self._ranks) for kind in MOMENTS}
                optimizer.state[parameter] = {"step": state["step"].clone(), **moments}
        return model, optimizer

    def load(self, read: Callable[[nn.Module, Optimizer], T]) -> T:
        """See `TrainEngine`."""
        if self._pending:
            raise self._ranks.error(AMID_A_STEP)
        if self._stage == 0:
            return read(self.lm.model, self._adamw)
        self._make_moments()
        model, optimizer = self.state()
        result = read(model, optimizer)
        steps = {float(state["step"]) for state in optimizer.state.values()}
        if len(steps) > 1:
            raise self._ranks.error(
                "the checkpoint has parameters that were moved in some of its steps only, which DeepSpeed cannot go on "
                'from; set parallel.engine = "native"'
            )
        for name, share in model.named_parameters():
            parameter, whole = self._parameters[name], _whole_of(share.detach())
            self._deepspeed.utils.safe_set_full_fp32_param(parameter, whole)
            with self._deepspeed.zero.GatheredParameters(parameter, modifier_rank=0, enabled=self._stage == 3):
                parameter.data.copy_(whole)
            for kind in MOMENTS:
                moment = (
                    _whole_of(optimizer.state[share][kind]) if share in optimizer.state else torch.zeros_like(whole)
                )
                self._deepspeed.utils.safe_set_full_optimizer_state(parameter, moment, kind)
        for state in self._adamw.state.values():
            state["step"].fill_(max(steps, default=0.0))
        return result

    def _make_moments(self) -> None:
        """Have DeepSpeed make the optimizer's state, which it does in its first step: one that moves nothing."""
        if not self._stepped:
            nothing = torch.zeros(1, 2, dtype=torch.long)
            rows = {"input_ids": nothing, "labels": nothing, "position_ids": torch.arange(2)[None]}
            self.forward_backward(rows, scale=0.0, last=True)
            self.update(0.0)

    def _whole(self, name: str, kind: str | None = None) -> Tensor:
        """The master of a parameter, or a moment, whole on all ranks, which all call this."""
        get = self._deepspeed.utils
        if kind is None:
            return get.safe_get_full_fp32_param(self._parameters[name])  # type: ignore[no-any-return]
        return get.safe_get_full_optimizer_state(self._parameters[name], kind)  # type: ignore[no-any-return]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `TrainEngine`; not in stage 3, which has no parameter whole."""
        self._step_loss.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._step_loss.train()

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainEngine`."""
        if self._stage == 0:
            yield from whole_parameters(self.lm.model, self._ranks)
            return
        for name in self._parameters:
            whole = self._whole(name)
            yield name, whole.cpu() if self._ranks.is_first else torch.empty(0)
        for name, buffer in self.lm.model.named_buffers():
            if name in self._stored:
                yield name, buffer.detach().cpu() if self._ranks.is_first else torch.empty(0)


def _whole_of(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def _launched(ranks: Ranks) -> Iterator[None]:
    """Within: the environment says which rank this is on its machine, as DeepSpeed demands."""
    given = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = str(ranks.local_rank)
    try:
        yield
    finally:
        if given is None:
            del os.environ["LOCAL_RANK"]
