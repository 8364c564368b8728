"""Device and precision: what was asked for, or one line why not; and what is told of a folder without its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilekit.errors import PilekitError
from pilekit.evaluate.model import device as module
from pilekit.evaluate.model.device import device_of, dtype_of
from pilekit.evaluate.model.load import CAUSAL, MASKED, kind_of, outline, stored_dtype
from pilekit.evaluate.ranks import ranks_of_job
from tests.tiny import tiny_model, tiny_model_dir

CPU = torch.device("cpu")
ALONE = ranks_of_job()
SECOND = replace(ALONE, rank=1, world_size=2, local_rank=1)


def machine(patch: pytest.MonkeyPatch, gpus: int) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    patch.setattr(torch.cuda, "device_count", lambda: gpus)
    patch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.parametrize(
    ("given", "gpus", "ranks", "expected"),
    [
        ("auto", 0, ALONE, "cpu"),
        ("cpu", 4, ALONE, "cpu"),
        ("auto", 4, ALONE, "cuda:0"),
        ("cuda", 4, ALONE, "cuda:0"),
        ("cuda:3", 4, ALONE, "cuda:3"),
        ("auto", 0, SECOND, "cpu"),
        ("cpu", 1, SECOND, "cpu"),
        ("auto", 2, SECOND, "cuda:1"),
        ("cuda", 2, SECOND, "cuda:1"),
    ],
)
def test_devices(given: str, gpus: int, ranks: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpus)
    assert device_of(given, ranks) == torch.device(expected)


@pytest.mark.parametrize(
    ("given", "gpus", "ranks", "words"),
    [
        ("cuda", 0, ALONE, "^device cuda: torch finds no GPU on this machine; give cpu, or auto$"),
        ("cuda:0", 0, ALONE, "^device cuda:0: torch finds no GPU"),
        ("cuda:4", 4, ALONE, "^device cuda:4: this machine has only cuda:0 to cuda:3"),
        ("cuda:1", 4, SECOND, "^device cuda:1: is one GPU, but there are 2 ranks"),
        ("cuda", 1, SECOND, r"^rank 1 is number 1 \(from 0\) of a machine with 1 GPU; start at most 1 ranks? there"),
        ("GPU", 1, ALONE, "^device is auto, cpu, cuda or cuda:N, not 'GPU'$"),
        ("cuda:-1", 1, ALONE, "^device is auto, cpu, cuda or cuda:N, not"),
        ("cuda:٣", 8, ALONE, "^device is auto"),
        ("\x1b[31m" * 50, 1, ALONE, r"^device is auto, cpu, cuda or cuda:N, not '[^\x1b]*…'$"),
        (None, 1, ALONE, "^device is auto"),
    ],
)
def test_what_is_no_device(given: Any, gpus: int, ranks: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpus)
    with pytest.raises(PilekitError, match=words):
        device_of(given, ranks)


def test_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dtype_of("auto", CPU, torch.bfloat16) is torch.float32
    assert dtype_of("fp32", CPU, torch.bfloat16) is torch.float32
    assert dtype_of("bf16", CPU, torch.float32) is torch.bfloat16
    with pytest.raises(PilekitError, match=r"^dtype is auto, fp32, bf16 or fp16, not 'float16'$"):
        dtype_of("float16", CPU, torch.float32)

    def lacking(*arguments: Any) -> None:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nmore")

    monkeypatch.setattr(module, "linear", lacking)
    with pytest.raises(PilekitError, match=r"^dtype fp16: this machine's cpu cannot compute .*Half'.; give fp32$"):
        dtype_of("fp16", CPU, torch.float32)


def test_the_stored_precision_is_that_of_most_numbers(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path)
    assert stored_dtype(folder) is torch.float32
    tensors = load_file(folder / "model.safetensors")
    largest = max(tensors, key=lambda name: tensors[name].numel())
    for dtype in (torch.bfloat16, torch.float16):
        changed = {name: tensor if name == largest else tensor.to(dtype) for name, tensor in tensors.items()}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        most = 2 * tensors[largest].numel() < sum(tensor.numel() for tensor in tensors.values())
        assert stored_dtype(folder) is (dtype if most else torch.float32)
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
        assert stored_dtype(folder) is dtype
    save_file({"a": torch.zeros(3, dtype=torch.int64)}, folder / "model.safetensors")
    assert stored_dtype(folder) is torch.float32


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "llama"])
def test_the_outline_has_the_parameters_of_the_model(family: Any, tmp_path: Path) -> None:
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    found = outline(tmp_path)
    assert {parameter.device.type for parameter in found.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in found.parameters()) == sum(
        parameter.numel() for parameter in model.parameters()
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"model_type": "gpt2"}, CAUSAL),
        ({"model_type": "distilbert"}, MASKED),
        ({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}, MASKED),
        ({"model_type": "roberta", "architectures": ["RobertaForCausalLM"]}, CAUSAL),
        ({"model_type": "roberta"}, MASKED),
        ({"model_type": "bert", "is_decoder": True}, CAUSAL),
        ({"model_type": "bert", "is_decoder": True, "architectures": ["BertForMaskedLM"]}, MASKED),
        ({"model_type": "bert", "architectures": ["BertModel"]}, MASKED),
        ({"model_type": "gpt2", "architectures": ["BertForMaskedLM"]}, CAUSAL),
        ({"model_type": 3}, CAUSAL),
        ({"model_type": "bert", "architectures": 3}, CAUSAL),
        ({"model_type": "bert", "architectures": [{}]}, CAUSAL),
        ([], CAUSAL),
        (None, CAUSAL),
    ],
)
def test_the_kind_of_a_model(content: Any, expected: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert kind_of(tmp_path) is expected
    (tmp_path / "config.json").write_text("{")
    assert kind_of(tmp_path) is CAUSAL
    assert kind_of(tmp_path / "nowhere") is CAUSAL
