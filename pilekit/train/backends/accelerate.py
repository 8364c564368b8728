"""accelerate as an engine: its DDP (stage 0), and its FSDP2 on GPUs (stages 2 and 3), around torch's AdamW.

accelerate wraps the model, counts micro-batches (`accumulate`), clips, and uses autocast for bf16 under DDP. Stages
differ as in the native engine: 2 keeps parameters whole from forward to backward, 3 does not, and both send gradients
after every micro-batch. accelerate's FSDP2 has no setting for stage 1.

Parameters stay torch's own, whole or DTensors, so checkpoints need no translation.
"""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from pilekit.errors import PilekitError
from pilekit.models.causal import CausalLM
from pilekit.models.masked import MaskedLM
from pilekit.models.transformer_blocks import blocks_of
from pilekit.train.backends.package_engine import PackageEngine, naming_backend_file
from pilekit.train.config.backend_file import backend_settings
from pilekit.train.config.sections import TrainConfig
from pilekit.train.step.sharding import whole_tensor
from pilekit.train.step.step_engine import NO_UPDATE, Update
from pilekit.workers.ranks import Ranks


class AccelerateEngine(PackageEngine):
    """A `StepEngine` around an `accelerate.Accelerator`."""

    def __init__(self, lm: CausalLM | MaskedLM, config: TrainConfig, ranks: Ranks) -> None:
        from accelerate import Accelerator
        from accelerate.commands.config.config_args import load_config_from_file
        from accelerate.state import AcceleratorState, GradientState
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, GradientAccumulationPlugin

        super().__init__(lm, config, ranks)
        self._clip_norm = config.train.clip_norm
        settings = backend_settings(config, ranks.world_size)
        sharding = settings.get("fsdp_config") or {}
        blocks = sorted({type(block).__name__ for block in blocks_of(lm.model)})
        AcceleratorState._reset_state(reset_partial_state=True)  # or settings of an earlier run in this process remain
        GradientState._reset_state()
        with patch.dict(os.environ, environment_of(settings)), naming_backend_file(config):
            if config.parallel.backend_config is not None:
                load_config_from_file(config.parallel.backend_config)  # refuses unknown names
            plugin = None
            if config.parallel.zero and ranks.world_size > 1:
                named = sharding.get("fsdp_transformer_layer_cls_to_wrap")
                plugin = FullyShardedDataParallelPlugin(
                    fsdp_version=2,
                    reshard_after_forward=config.parallel.zero == 3,
                    auto_wrap_policy="transformer_based_wrap",
                    transformer_cls_names_to_wrap=named.split(",") if named else blocks,
                    state_dict_type="SHARDED_STATE_DICT",
                    cpu_ram_efficient_loading=False,
                )
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
                f'parallel.backend = "accelerate": it would train with {accelerator.distributed_type} on '
                f"{accelerator.num_processes} of {ranks.world_size} ranks; start them with --nproc-per-node or torchrun"
            )
        with naming_backend_file(config):
            self._wrapped, self._optimizer = accelerator.prepare(self._step_loss, self.optimizer)
        if plugin is not None:
            self._step_loss = self._wrapped
            register_fsdp_forward_method(self._step_loss, "gather")
        if isinstance(self._wrapped, DistributedDataParallel):
            atexit.register(_release_group, weakref.ref(self._wrapped))

    def forward_backward(self, rows: Mapping[str, Tensor], *, scale: float, last: bool) -> Tensor:
        """See `StepEngine`."""
        with self._accelerator.accumulate(self._wrapped):
            assert self._accelerator.sync_gradients == last, "accelerate and the trainer count alike"
            loss, nll = self._forward(rows, scale)
            self._accelerator.backward(loss)
        return nll

    def update(self, lr: float, nll: Tensor | None = None, *, is_first: bool = False) -> Update:
        """See `StepEngine`."""
        if not self._is_finite(nll):
            return NO_UPDATE
        self._has_gradient = False
        total: Any = self._accelerator.clip_grad_norm_(self._wrapped.parameters(), self._clip_norm)
        norm = float(whole_tensor(total))
        if finite := math.isfinite(norm):
            self._set_rate(lr)
            self._optimizer.step()
        self._optimizer.zero_grad()
        return Update(norm, skipped=not finite)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `StepEngine`."""
        with super().evaluating(), self._accelerator.autocast():
            yield


def environment_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables in which `accelerate launch` passes these settings to a process."""
    flags = {"debug": "ACCELERATE_DEBUG_MODE", "enable_cpu_affinity": "ACCELERATE_CPU_AFFINITY"}
    variables = {variable: "true" for name, variable in flags.items() if settings.get(name)}
    return variables | {name.upper(): str(value) for name, value in (settings.get("fsdp_config") or {}).items()}


def _release_group(wrapper: weakref.ref[DistributedDataParallel]) -> None:
    """Make DDP release the process group when the process ends, in case a script still holds its Trainer.

    DDP's reducer holds the group too, and would end its threads while holding Python's lock. A thread that waits for
    the lock to free the last gradients would then never end, and neither would the process.
    """
    if (ddp := wrapper()) is not None:
        for name in ("logger", "reducer", "process_group"):  # Python's own reference must be the last
            vars(ddp).pop(name)
