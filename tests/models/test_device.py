"""Device and precision: the requested ones, or one line that says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pilekit.evaluate.score_ranks import single_rank
from pilekit.models.device import device_of, dtype_of
from tests.refusing import refused

CPU = torch.device("cpu")
SINGLE_RANK = single_rank()
SECOND = replace(SINGLE_RANK, rank=1, world_size=2, local_rank=1)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for given, gpus, ranks, expected in (
        ("auto", 0, SINGLE_RANK, "cpu"),
        ("cpu", 4, SINGLE_RANK, "cpu"),
        ("auto", 4, SINGLE_RANK, "cuda:0"),
        ("cuda:3", 4, SINGLE_RANK, "cuda:3"),
        ("auto", 0, SECOND, "cpu"),
        ("auto", 2, SECOND, "cuda:1"),
        ("cuda", 0, SINGLE_RANK, "device cuda: torch finds no GPU on this machine; give cpu, or auto"),
        ("cuda:4", 4, SINGLE_RANK, "rank 0 needs cuda:4, but this machine has only cuda:0 to cuda:3"),
        ("cuda:1", 4, SECOND, "device cuda:1: each of 2 ranks needs a GPU of its own; give cuda"),
        ("cuda", 1, SECOND, "rank 1 needs cuda:1, but this machine has only"),
        ("cuda:٣", 8, SINGLE_RANK, "device is auto, cpu, cuda or cuda:N, not"),
        ("\x1b[31m", 1, SINGLE_RANK, "device is auto, cpu, cuda or cuda:N, not"),
        (None, 1, SINGLE_RANK, "device is auto, cpu, cuda or cuda:N, not"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        if " " in expected:
            refused(f"^{expected}", device_of, given, ranks)
        else:
            assert device_of(given, ranks) == torch.device(expected)


def test_precisions() -> None:
    assert dtype_of("auto", CPU, torch.bfloat16) is torch.float32
    assert dtype_of("auto", torch.device("cuda"), torch.bfloat16) is torch.bfloat16
    assert dtype_of("fp32", CPU, torch.bfloat16) is torch.float32
    assert dtype_of("bf16", CPU, torch.float32) is torch.bfloat16
    refused(r"^dtype is auto, fp32, bf16, fp16, int8 or int4, not 'float16'$", dtype_of, "float16", CPU, torch.float32)
