"""The files of DeepSpeed and accelerate that a config names: merged, or refused in one line with both values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from pilekit.train.config.backend_file import backend_settings
from tests.refusing import refused
from tests.train.runs import small_config

CONFIG = {"train.global_batch_size": 32, "train.micro_batch_size": 4, "optimizer.lr": 1e-3}

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """`settings("deepspeed", {...}, 2, **{"train.steps": 5})`: the settings on two ranks with this file."""

    def settings(engine: str, content: Any, ranks: int = 2, **changes: Any) -> dict[str, Any]:
        file = tmp_path / ("ds.json" if engine == "deepspeed" else "accelerate.yaml")
        file.write_text(json.dumps(content) if engine == "deepspeed" else yaml.safe_dump(content))
        changes = {"parallel.backend": engine, "parallel.backend_config": str(file), **changes}
        return backend_settings(small_config(CONFIG | changes), ranks)

    return settings


def refusal(call: Callable[..., object], folder: Path, *given: Any, **more: Any) -> str:
    """The one line with which the call is refused, without the folder's name."""
    return refused(".", call, *given, **more).replace(f"{folder}/", "")


def test_deepspeed_keeps_its_own_settings_and_the_run_decides_the_rest(settings: Settings) -> None:
    """A file as transformers' users have it."""
    given = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": "auto",
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": False, "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": "auto"}},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": 1000,
            "offload_optimizer": {"device": "none", "pin_memory": True},
        },
    }
    changes = {"parallel.zero": 2}
    found = settings("deepspeed", given, **changes)
    made = {name: value for name, value in settings("deepspeed", {}, **changes).items() if name != "zero_optimization"}
    assert found == {
        **made,
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
        "bf16": {},
        "fp16": {"enabled": False, "loss_scale": 0},
        "zero_optimization": {
            "stage": 2,
            "allgather_bucket_size": 1000,
            "offload_optimizer": {"device": "none", "pin_memory": True},
        },
    }
    assert found["train_batch_size"] == 4 * 4 * 2


def test_deepspeed_gets_batch_stage_precision_and_offload() -> None:
    rows = {"train.global_batch_size": 24, "train.micro_batch_size": 2, "train.clip_norm": math.inf}
    parallel = {"parallel.backend": "deepspeed", "parallel.zero": 3, "parallel.offload": True}
    found = backend_settings(small_config(CONFIG | rows | parallel | {"precision.dtype": "bf16"}), 4)
    sizes = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"], found["train_batch_size"]
    assert sizes == (2, 3, 24)
    on_cpu = {"device": "cpu"}
    assert found["zero_optimization"] == {"stage": 3, "offload_optimizer": on_cpu, "offload_param": on_cpu}
    assert (found["gradient_clipping"], found["steps_per_print"]) == (0.0, None)
    assert found["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert found["data_types"]["grad_accum_dtype"] == found["communication_data_type"] == "fp32"


def nested(path: str, value: Any) -> dict[str, Any]:
    """The settings of a file with this one alone."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return cast("dict[str, Any]", value)


def test_a_setting_of_deepspeed_that_contradicts_the_run(settings: Settings, tmp_path: Path) -> None:
    bf16, offload = {"precision.dtype": "bf16", "parallel.zero": 1}, {"parallel.zero": 2, "parallel.offload": True}
    zero = "zero_optimization"
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("train_batch_size", 64, {}, "32"),
        ("train_micro_batch_size_per_gpu", 8, {}, "4"),
        ("gradient_accumulation_steps", 8, {}, "4"),
        ("gradient_clipping", 0.5, {}, "1.0"),
        ("fp16.enabled", True, {}, "false"),
        ("bf16.enabled", True, {}, "false"),
        ("bf16.enabled", False, bf16, "true"),
        (f"{zero}.stage", 3, {"parallel.zero": 2}, "2"),
        (f"{zero}.offload_optimizer.device", "nvme", offload, '"cpu"'),
        (f"{zero}.offload_param.device", "cpu", {"parallel.zero": 3}, '"none"'),
        ("optimizer.type", "OneBitAdam", {}, '"AdamW"'),
        ("optimizer.params.lr", 3e-4, {}, "0.001"),
        ("scheduler", {"type": "WarmupLR"}, {}, "none"),
    ]
    for path, value, changes, asked in cases:
        found = refusal(settings, tmp_path, "deepspeed", nested(path, value), **changes)
        assert found == f"ds.json: {path} = {json.dumps(value)}, but the run asks for {asked}; change one of them"
    for given, message in (
        (nested(zero, True), "ds.json: zero_optimization = true: must hold settings by name"),
        ([1], "ds.json: must hold settings by name, as deepspeed reads them"),
    ):
        assert refusal(settings, tmp_path, "deepspeed", given) == message


def test_settings_of_accelerate_pass_or_contradict(settings: Settings, tmp_path: Path) -> None:
    given = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_processes": 2,
        "machine_rank": 0,
        "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False},
    }
    changes = {"parallel.zero": 3, "precision.dtype": "bf16"}
    assert settings("accelerate", given, **changes) == given
    assert settings("accelerate", yaml.safe_load("{distributed_type: NO, mixed_precision: no, num_processes: 1}"), 1)
    whole = {"parallel.zero": 0, "precision.dtype": "fp32"}
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("mixed_precision", "fp16", {}, '"bf16"'),
        ("distributed_type", "DEEPSPEED", {}, '"FSDP"'),
        ("distributed_type", "FSDP", whole, '"MULTI_GPU"'),
        ("num_processes", 8, {}, "2"),
        ("dynamo_config.dynamo_backend", "INDUCTOR", {}, '"no"'),
        ("parallelism_config", {"parallelism_config_tp_size": 2}, {}, "{}"),
        ("fsdp_config.fsdp_version", 1, {}, "2"),
        ("fsdp_config.fsdp_reshard_after_forward", False, {}, "true"),
        ("fsdp_config.fsdp_activation_checkpointing", True, {}, "false"),
        ("fsdp_config.fsdp_offload_params", True, {}, "false"),
    ]
    for path, value, more, asked in cases:
        found = refusal(settings, tmp_path, "accelerate", nested(path, value), **(changes | more))
        assert (
            found == f"accelerate.yaml: {path} = {json.dumps(value)}, but the run asks for {asked}; change one of them"
        )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def start(name: str, engine: str = "deepspeed") -> object:
        changes = {"parallel.backend": engine, "parallel.backend_config": str(tmp_path / name)}
        return backend_settings(small_config(CONFIG | changes), 1)

    (tmp_path / "bad.json").write_text("{'stage': 2}")
    (tmp_path / "bad.yaml").write_text("a: [1")
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    assert refusal(start, tmp_path, "none.json") == "none.json: cannot be read (No such file or directory)"
    for name in ("bad.json", "bad.yaml", "latin.json"):
        assert refusal(start, tmp_path, name).startswith(f"{name}: is neither JSON nor YAML")
    needed = 'needs parallel.backend = "deepspeed" or "accelerate"'
    assert needed in refusal(start, tmp_path, "bad.json", "native")
