"""`parallel.backend_config`: a file of settings for DeepSpeed (its JSON) or accelerate (of `accelerate config`).

The run's config decides batch sizes, precision, optimizer, schedule and ZeRO stage. A file may repeat these values or
say "auto". Another value is an error that names both. All other settings go to the package. Neither torch nor the
package is imported, so an error comes before anything is loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pilekit.artifacts.checked import shown
from pilekit.errors import PilekitError, shortened
from pilekit.train.config.sections import TrainConfig

AUTO = "auto"
"""As in transformers: the run's value, or the package's default where the run has none."""
Decided = dict[str, tuple[Any, ...]]
"""Settings that the run decides: the path in the file, and the values that it may have."""


def backend_settings(config: TrainConfig, world_size: int) -> dict[str, Any]:
    """The settings of `parallel.backend` on `world_size` ranks; for accelerate, those of the file alone.

    Raises PilekitError if the file cannot be read, or a setting contradicts the config.
    """
    settings = read_backend_file(config)
    if config.parallel.backend == "deepspeed":
        decided_values = deepspeed_config(config, world_size)
        decided = _decided_for_deepspeed(config) | {path: (value,) for path, value in decided_values.items()}
        _check_decided(settings, decided, config)
        settings = {"steps_per_print": None} | _without_auto(settings)
        settings.pop("optimizer", None)
        for path, value in decided_values.items():
            part, (*above, last) = settings, path.split(".")
            for name in above:
                part[name] = part.get(name) or {}
                part = part[name]
            part[last] = value
    elif config.parallel.backend == "accelerate":
        _check_decided(settings, _decided_for_accelerate(config, world_size), config)
    return settings


def read_backend_file(config: TrainConfig) -> dict[str, Any]:
    """The content of `parallel.backend_config`; empty without a file."""
    path = config.parallel.backend_config
    if path is None:
        return {}
    try:
        text = Path(path).read_text("utf-8")
        settings = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise PilekitError(f"{path}: is neither JSON nor YAML: {shortened(error, 200)}") from None
    if not isinstance(settings, dict):
        raise PilekitError(f"{path}: must hold settings by name, as {config.parallel.backend} reads them")
    return settings


def deepspeed_config(config: TrainConfig, world_size: int) -> dict[str, Any]:
    """The settings for `deepspeed.initialize` that `config` decides, by their path in the file."""
    train, parallel = config.train, config.parallel
    values: dict[str, Any] = {
        "train_batch_size": train.global_batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": train.global_batch_size // world_size // train.micro_batch_size,
        "gradient_clipping": 0.0 if math.isinf(train.clip_norm) else train.clip_norm,
        "zero_optimization.stage": parallel.zero,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW steps there too
    }
    if parallel.offload:
        values["zero_optimization.offload_optimizer.device"] = "cpu"
        if parallel.zero == 3:
            values["zero_optimization.offload_param.device"] = "cpu"
    if config.precision.dtype == "bf16":
        values |= {"bf16.enabled": True, "bf16.check_grad_overflow": True}
        values |= {"data_types.grad_accum_dtype": "fp32", "communication_data_type": "fp32"}
    return values


def _decided_for_deepspeed(config: TrainConfig) -> Decided:
    """The decided settings that `deepspeed_config` may leave out."""
    optimizer = config.optimizer
    return {
        "fp16.enabled": (False,),
        "amp.enabled": (False,),
        "bf16.enabled": (False,),
        "optimizer.type": ("AdamW",),
        "optimizer.params.lr": (optimizer.lr,),
        "optimizer.params.betas": (list(optimizer.betas),),
        "optimizer.params.eps": (optimizer.eps,),
        "optimizer.params.weight_decay": (optimizer.weight_decay,),
        "scheduler": (None,),
        "zero_optimization.offload_optimizer.device": ("none",),
        "zero_optimization.offload_param.device": ("none",),
    }


def _decided_for_accelerate(config: TrainConfig, world_size: int) -> Decided:
    """The decided settings of a file of `accelerate config`. Its unquoted NO is YAML's false."""
    zero, no = config.parallel.zero, ("no", "NO", False)
    one_each = ("MULTI_GPU", "MULTI_CPU", *no)
    shards = ("FSDP",) if world_size > 1 else ("FSDP", *one_each)
    return {
        "mixed_precision": ("bf16",) if config.precision.dtype == "bf16" else no,
        "distributed_type": shards if zero else one_each,
        "num_processes": (world_size,),
        "dynamo_config.dynamo_backend": no,
        "parallelism_config": ({},),
        "fsdp_config.fsdp_version": (2,),
        "fsdp_config.fsdp_reshard_after_forward": (zero == 3,),
        "fsdp_config.fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",),
        "fsdp_config.fsdp_offload_params": (False,),
        "fsdp_config.fsdp_activation_checkpointing": (False,),
    }


def _check_decided(settings: Mapping[str, Any], decided: Decided, config: TrainConfig) -> None:
    """Refuse the first setting that has another value than the run."""
    file = config.parallel.backend_config or ""
    for path, possible in decided.items():
        value: Any = settings
        *above, last = path.split(".")
        for name in above:
            value = value.get(name) or {}
            if not isinstance(value, Mapping):
                raise PilekitError(f"{file}: {name} = {shown(value)}: must hold settings by name")
        value = value.get(last)
        if value is not None and value != AUTO and value not in possible:
            run_value = "none" if possible[0] is None else shown(possible[0])
            raise PilekitError(f"{file}: {path} = {shown(value)}, but the run asks for {run_value}; change one of them")


def _without_auto(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without "auto"."""
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if value != AUTO
    }
