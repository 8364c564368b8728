"""The files of DeepSpeed and accelerate that a config names: merged, or refused in one line with both values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pilekit.errors import PilekitError
from pilekit.train.config.engine_file import deepspeed_config, engine_settings
from pilekit.train.config.file import load_config
from pilekit.train.engines import check_engine

CONFIG = {
    "data": {"tokenizer": "tokenizer.json"},
    "model": {"preset": "pythia-14m"},
    "train": {"steps": 10, "global_batch_size": 32, "micro_batch_size": 4},
    "optimizer": {"lr": 1e-3},
}

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """`settings("deepspeed", {...}, 2, **{"train.steps": 5})`: the settings on two ranks with this file."""

    def settings(engine: str, content: Any, ranks: int = 2, **changes: Any) -> dict[str, Any]:
        file = tmp_path / ("ds.json" if engine == "deepspeed" else "accelerate.yaml")
        file.write_text(json.dumps(content) if engine == "deepspeed" else yaml.safe_dump(content))
        changes = {"parallel.engine": engine, "parallel.engine_config": str(file), **changes}
        return engine_settings(load_config(CONFIG, changes), ranks)

    return settings


def refusal(call: Callable[[], object], folder: Path) -> str:
    with pytest.raises(PilekitError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(f"{folder}/", "")


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
    made = deepspeed_config(load_config(CONFIG, changes), 2)
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
    assert settings("deepspeed", {}, **changes) == made


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        (
            {"train_batch_size": 64},
            {},
            "train_batch_size = 64, but train.global_batch_size = 32 asks for 32; change one of them",
        ),
        ({"train_micro_batch_size_per_gpu": 8}, {}, "= 8, but train.micro_batch_size = 4 asks for 4"),
        ({"gradient_accumulation_steps": 8}, {}, "= 8, but train.global_batch_size = 32 asks for 4"),
        ({"gradient_clipping": 0.5}, {}, "gradient_clipping = 0.5, but train.clip_norm = 1.0 asks for 1.0"),
        ({"fp16": {"enabled": True}}, {}, 'fp16.enabled = true, but precision.dtype = "fp32" asks for false'),
        ({"bf16": {"enabled": True}}, {}, 'bf16.enabled = true, but precision.dtype = "fp32" asks for false'),
        (
            {"bf16": {"enabled": False}},
            {"precision.dtype": "bf16", "parallel.zero": 1},
            'bf16.enabled = false, but precision.dtype = "bf16" asks for true',
        ),
        ({"zero_optimization": {"stage": 3}}, {"parallel.zero": 2}, "stage = 3, but parallel.zero = 2 asks for 2"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
            {"parallel.zero": 2, "parallel.offload": True},
            'offload_optimizer.device = "nvme", but parallel.offload = true asks for "cpu"',
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "cpu"}}},
            {"parallel.zero": 3},
            'offload_param.device = "cpu", but parallel.offload = false asks for "none"',
        ),
        (
            {"optimizer": {"type": "OneBitAdam"}},
            {},
            'type = "OneBitAdam", but optimizer.name = "adamw" asks for "AdamW"',
        ),
        ({"optimizer": {"params": {"lr": 3e-4}}}, {}, "lr = 0.0003, but optimizer.lr = 0.001 asks for 0.001"),
        ({"scheduler": {"type": "WarmupLR"}}, {}, 'but schedule.kind = "cosine" asks for none'),
        ({"zero_optimization": True}, {}, "ds.json: zero_optimization = true: must hold settings by name"),
        ([1], {}, "ds.json: must hold settings by name, as deepspeed reads them"),
    ],
)
def test_a_setting_of_deepspeed_that_contradicts_the_run(
    settings: Settings, tmp_path: Path, given: Any, changes: dict[str, Any], message: str
) -> None:
    found = refusal(lambda: settings("deepspeed", given, **changes), tmp_path)
    assert found.startswith("ds.json: ")
    assert message in found


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
    for wrong, message in (
        ({"mixed_precision": "fp16"}, 'mixed_precision = "fp16", but precision.dtype = "bf16" asks for "bf16"'),
        ({"distributed_type": "DEEPSPEED"}, 'distributed_type = "DEEPSPEED", but parallel.zero = 3 asks for "FSDP"'),
        ({"num_processes": 8}, "num_processes = 8, but the number of ranks asks for 2"),
        ({"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "but parallel.compile = false asks for"),
        ({"parallelism_config": {"parallelism_config_tp_size": 2}}, 'but parallel.engine = "accelerate" asks for {}'),
        ({"fsdp_config": {"fsdp_version": 1}}, "fsdp_config.fsdp_version = 1"),
        ({"fsdp_config": {"fsdp_reshard_after_forward": False}}, "but parallel.zero = 3 asks for true"),
        ({"fsdp_config": {"fsdp_activation_checkpointing": True}}, 'parallel.activation_checkpoint = "none" asks for'),
        ({"fsdp_config": {"fsdp_offload_params": True}}, "but parallel.offload = false asks for false"),
    ):
        found = refusal(lambda wrong=wrong: settings("accelerate", given | wrong, **changes), tmp_path)  # type: ignore[misc]
        assert found.startswith("accelerate.yaml: ")
        assert message in found
    found = refusal(lambda: settings("accelerate", {"distributed_type": "FSDP"}), tmp_path)
    assert 'but parallel.zero = 0 asks for "MULTI_GPU"' in found


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def start(name: str, **changes: Any) -> dict[str, Any]:
        changes = {"parallel.engine": "deepspeed", "parallel.engine_config": str(tmp_path / name), **changes}
        return engine_settings(load_config(CONFIG, changes), 1)

    (tmp_path / "bad.json").write_text("{'stage': 2}")
    (tmp_path / "bad.yaml").write_text("a: [1")
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    assert refusal(lambda: start("none.json"), tmp_path) == "none.json: cannot be read (No such file or directory)"
    for name in ("bad.json", "bad.yaml", "latin.json"):
        assert refusal(lambda name=name: start(name), tmp_path).startswith(f"{name}: is neither JSON nor YAML")  # type: ignore[misc]
    found = refusal(lambda: start("bad.json", **{"parallel.engine": "native"}), tmp_path)
    assert 'needs parallel.engine = "deepspeed" or "accelerate"' in found


def test_a_file_for_a_cpu_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilekit.train.engines.find_spec", lambda name: name)
    (tmp_path / "cpu.yaml").write_text("use_cpu: true")
    changes = {"parallel.engine": "accelerate", "parallel.engine_config": str(tmp_path / "cpu.yaml")}
    config = load_config(CONFIG, changes)
    check_engine(config, torch.device("cpu"))
    found = refusal(lambda: check_engine(config, torch.device("cuda")), tmp_path)
    assert found == "cpu.yaml: use_cpu = true, but the run has a GPU; change it, or hide the GPU from the run"
