"""`parallel.engine_config`: a file of settings for DeepSpeed (its JSON) or accelerate (of `accelerate config`).

The run's config decides batch sizes, precision, optimizer, schedule and ZeRO stage. A file may repeat these values or
say "auto"; another value is an error that names both. All other settings go to the package. Neither torch nor the
package is imported, so an error comes before anything is loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pilekit.errors import PilekitError, visible
from pilekit.train.config.check import shown
from pilekit.train.config.sections import TrainConfig, values

AUTO = "auto"
"""As in transformers: the run's value, or the package's default where the run has none."""
Decided = tuple[str, tuple[Any, ...], str]
"""A setting's path in the file, the values that it may have, and the field or fact that decides."""


def engine_settings(config: TrainConfig, world_size: int) -> dict[str, Any]:
    """The settings of `parallel.engine` on `world_size` ranks; for accelerate, those of the file alone.

    PilekitError if the file cannot be read, or a setting contradicts the config.
    """
    settings = read_engine_file(config)
    if config.parallel.engine == "deepspeed":
        made = deepspeed_config(config, world_size)
        _check_decided(settings, [*_decided_of(made), *_decided_for_deepspeed(config)], config)
        settings = _merged({name: part for name, part in settings.items() if name != "optimizer"}, made)
    elif config.parallel.engine == "accelerate":
        _check_decided(settings, _decided_for_accelerate(config, world_size), config)
    return settings


def read_engine_file(config: TrainConfig) -> dict[str, Any]:
    """The content of `parallel.engine_config`; empty without a file."""
    path = config.parallel.engine_config
    if path is None:
        return {}
    try:
        text = Path(path).read_text("utf-8")
        settings = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise PilekitError(f"{visible(path)}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise PilekitError(f"{visible(path)}: is neither JSON nor YAML: {visible(error, 200)}") from None
    if not isinstance(settings, dict):
        raise PilekitError(f"{visible(path)}: must hold settings by name, as {config.parallel.engine} reads them")
    return settings


def deepspeed_config(config: TrainConfig, world_size: int) -> dict[str, Any]:
    """The settings for `deepspeed.initialize` that `config` decides."""
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


FIELDS = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.global_batch_size",
    "gradient_clipping": "train.clip_norm",
    "zero_optimization.stage": "parallel.zero",
    "zero_optimization.offload_optimizer.device": "parallel.offload",
    "zero_optimization.offload_param.device": "parallel.offload",
    "zero_force_ds_cpu_optimizer": "parallel.engine",
}
"""The fields that decide DeepSpeed's settings; `precision.dtype` decides the others."""


def _decided_of(made: Mapping[str, Any], above: str = "") -> list[Decided]:
    """Each value of `made` as a decided setting."""
    found: list[Decided] = []
    for name, value in made.items():
        if isinstance(value, Mapping):
            found += _decided_of(value, f"{above}{name}.")
        elif value is not None:
            found.append((above + name, (value,), FIELDS.get(above + name, "precision.dtype")))
    return found


def _decided_for_deepspeed(config: TrainConfig) -> list[Decided]:
    """The decided settings that `deepspeed_config` leaves out."""
    optimizer, parallel = config.optimizer, config.parallel
    on_cpu = {"offload_optimizer": parallel.offload, "offload_param": parallel.offload and parallel.zero == 3}
    return [
        ("fp16.enabled", (False,), "precision.dtype"),
        ("amp.enabled", (False,), "precision.dtype"),
        ("bf16.enabled", (config.precision.dtype == "bf16",), "precision.dtype"),
        ("optimizer.type", ("AdamW",), "optimizer.name"),
        ("optimizer.params.lr", (optimizer.lr,), "optimizer.lr"),
        ("optimizer.params.betas", (list(optimizer.betas),), "optimizer.betas"),
        ("optimizer.params.eps", (optimizer.eps,), "optimizer.eps"),
        ("optimizer.params.weight_decay", (optimizer.weight_decay,), "optimizer.weight_decay"),
        ("scheduler", (None,), "schedule.kind"),
        *(
            (f"zero_optimization.{part}.device", ("none",), FIELDS[f"zero_optimization.{part}.device"])
            for part, offloaded in on_cpu.items()
            if not offloaded
        ),
    ]


def _decided_for_accelerate(config: TrainConfig, world_size: int) -> list[Decided]:
    """The decided settings of a file of `accelerate config`; its unquoted NO is YAML's false."""
    zero, no = config.parallel.zero, ("no", "NO", False)
    one_each = ("MULTI_GPU", "MULTI_CPU", *no)
    shards = ("FSDP",) if world_size > 1 else ("FSDP", *one_each)
    return [
        ("mixed_precision", ("bf16",) if config.precision.dtype == "bf16" else no, "precision.dtype"),
        ("distributed_type", shards if zero else one_each, "parallel.zero"),
        ("num_processes", (world_size,), "the number of ranks"),
        ("dynamo_config.dynamo_backend", no, "parallel.compile"),
        ("parallelism_config", ({},), "parallel.engine"),
        ("fsdp_config.fsdp_version", (2,), "parallel.engine"),
        ("fsdp_config.fsdp_reshard_after_forward", (zero == 3,), "parallel.zero"),
        ("fsdp_config.fsdp_auto_wrap_policy", ("TRANSFORMER_BASED_WRAP",), "parallel.engine"),
        ("fsdp_config.fsdp_offload_params", (False,), "parallel.offload"),
        ("fsdp_config.fsdp_activation_checkpointing", (False,), "parallel.activation_checkpoint"),
    ]


def _check_decided(settings: Mapping[str, Any], decided: list[Decided], config: TrainConfig) -> None:
    """Refuse the first setting that has another value than the run."""
    file, held = visible(config.parallel.engine_config or ""), dict(values(config))
    for path, possible, by in decided:
        given: Any = settings
        *above, last = path.split(".")
        for name in above:
            given = given.get(name) or {}
            if not isinstance(given, Mapping):
                raise PilekitError(f"{file}: {name} = {shown(given)}: must hold settings by name")
        given = given.get(last)
        if given is not None and given != AUTO and given not in possible:
            reason = f"{by} = {shown(held[by])}" if by in held else by
            wanted = "none" if possible[0] is None else shown(possible[0])
            raise PilekitError(f"{file}: {path} = {shown(given)}, but {reason} asks for {wanted}; change one of them")


def _merged(given: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """`given` without "auto", overridden by `made`; None in `made` is only a default."""
    merged = {
        name: _merged(value, {}) if isinstance(value, Mapping) else value
        for name, value in given.items()
        if value != AUTO
    }
    for name, value in made.items():
        if isinstance(value, Mapping):
            merged[name] = _merged(merged.get(name) or {}, value)
        elif value is not None or name not in merged:
            merged[name] = value
    return merged
