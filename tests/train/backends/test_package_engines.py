"""The engines around DeepSpeed and accelerate without their packages; tests/frameworks runs the real ones."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from pilekit.errors import PilekitError
from pilekit.train import backends as engines
from pilekit.train.backends import check_backend
from pilekit.train.backends.accelerate import environment_of
from pilekit.train.backends.deepspeed import own_share
from pilekit.train.backends.package_engine import naming_backend_file, share_weights
from pilekit.workers.ranks import join
from tests.process_groups import ProcessGroups
from tests.train.runs import small_config


def test_what_a_package_refuses_is_told_in_one_plain_line() -> None:
    config = small_config(["parallel.backend=deepspeed", "parallel.backend_config=ds.json"])
    told = r"^ds\.json: deepspeed refuses it: 1 error for Zero x Extra input$"
    with pytest.raises(PilekitError, match=told), naming_backend_file(config):
        raise ValueError("1 error for Zero\nx\n  Extra input")


def test_settings_reach_accelerate_as_its_launcher_passes_them() -> None:
    settings = {"debug": True, "enable_cpu_affinity": False, "fsdp_config": {"fsdp_version": 2, "fsdp_use": False}}
    assert environment_of(settings) == {"ACCELERATE_DEBUG_MODE": "true", "FSDP_VERSION": "2", "FSDP_USE": "False"}
    assert environment_of({"fsdp_config": None}) == {}


def test_settings_that_an_engine_lacks_are_refused_by_name() -> None:
    for engine, changes, message in (
        ("deepspeed", "precision.dtype=fp16", 'precision.dtype = "fp16": with parallel.backend = "deepspeed" it must'),
        ("deepspeed", "parallel.zero=1 parallel.activation_checkpoint=full", 'it must be "none"'),
        ("accelerate", "parallel.compile=true", "parallel.compile = true: with parallel.backend"),
        ("accelerate", "parallel.zero=1", 'with parallel.backend = "accelerate" it must be 0 or 2 or 3'),
        ("accelerate", "parallel.zero=2 parallel.offload=true", "parallel.offload = true"),
        ("deepspeed", "precision.dtype=bf16", "parallel.zero = 0: with parallel.backend = "),
        ("deepspeed", "model.freeze=*.bias", 'model.freeze = ["*.bias"]: with parallel.backend = '),
        ("accelerate", "train.ema=0.9", "train.ema = 0.9: with parallel.backend = "),
        ("deepspeed", "parallel.zero=3 train.eval_every=5", "train.eval_every = 5: with parallel.backend"),
        ("accelerate", "model.config=c train.objective=mlm", 'train.objective = "mlm"'),
    ):
        with pytest.raises(PilekitError) as refused:
            small_config([f"parallel.backend={engine}", *changes.split()])
        assert message in str(refused.value)
        small_config(changes.split())
    for engine in ("deepspeed", "accelerate"):
        for zero in (0, 2, 3):
            small_config([f"parallel.backend={engine}", f"parallel.zero={zero}"])


def test_missing_packages_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("deepspeed", "accelerate"):
        monkeypatch.setattr(engines, "find_spec", lambda name: None)
        with pytest.raises(PilekitError, match=rf"{engine} is not installed; pip install 'pilekit\[{engine}\]'"):
            check_backend(small_config([f"parallel.backend={engine}"]))
    check_backend(small_config())
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100\x1b")
    (tmp_path / "cpu.yaml").write_text("use_cpu: true")
    accelerate, deepspeed, file = "parallel.backend=accelerate", "parallel.backend=deepspeed", f"{tmp_path}/cpu.yaml"
    refused = r"^parallel.zero = 3: accelerate shards on GPUs only; set it to 0"
    lacking = r'^precision.dtype = "bf16": Tesla V100\\x1b has no bfloat16; set "fp16"'
    hidden = r"/cpu.yaml: use_cpu = true, but the run has a GPU; change it, or hide the GPU from the run$"
    for changes, on_cpu, on_gpu in (
        ([accelerate, "parallel.zero=3"], refused, None),
        ([accelerate], None, None),
        ([deepspeed, "parallel.zero=3"], None, None),
        ([accelerate, f"parallel.backend_config={file}"], None, hidden),
        (["precision.dtype=bf16"], None, lacking),
        (["precision.dtype=fp16"], None, None),
    ):
        for device, message in (("cpu", on_cpu), ("cuda", on_gpu)):
            with nullcontext() if message is None else pytest.raises(PilekitError, match=message):
                check_backend(small_config(changes), torch.device(device))


SHAPES = [(1,), (2,), (5,), (4, 3), (1, 7), (3, 2, 2), ()]


def shares_agree() -> list[bool]:
    ranks = join()
    same = []
    for number, shape in enumerate(SHAPES):
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        share: Any = own_share(whole, ranks)
        if shape:
            wanted = distribute_tensor(whole, ranks.mesh, [Shard(0)])
            same.append(torch.equal(share.to_local(), wanted.to_local()) and torch.equal(share.full_tensor(), whole))
            same.append(share.shape == wanted.shape and share.stride() == wanted.stride())
        else:
            same.append(torch.equal(share, whole))
    return same


def shared_weights() -> dict[str, Any]:
    ranks = join()
    torch.manual_seed(ranks.rank)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.register_buffer("scalar", torch.tensor(float(ranks.rank + 1)))
    model.register_buffer("flags", torch.tensor([ranks.rank == 0, True]))
    model.register_buffer("turned", torch.arange(6.0).view(2, 3).T * (1 + ranks.rank))
    share_weights(model, ranks)
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_shares_are_those_that_fsdp_would_cut(process_group: ProcessGroups) -> None:
    for found in process_group(2).run(shares_agree):
        assert len(found) == 2 * len(SHAPES) - 1
        assert all(found)


def test_all_begin_with_the_first_ranks_weights(process_group: ProcessGroups) -> None:
    first, second = process_group(2).run(shared_weights)
    torch.manual_seed(0)
    assert first["0.weight"] == nn.Linear(3, 2).weight.tolist()
    assert first == second
    assert first["turned"] == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
