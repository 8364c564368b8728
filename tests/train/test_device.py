"""A feature that a device lacks is reported by field before anything is made; other features raise nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cpp_builder
from torch.utils import _triton

from pilekit.errors import PilekitError
from pilekit.train.config import ParallelConfig, PrecisionConfig, TrainConfig, TrainSection
from pilekit.train.device import check_device

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def config(dtype: Any = "fp32", *, compiled: bool = False) -> TrainConfig:
    return TrainConfig(
        train=TrainSection(steps=1),
        parallel=ParallelConfig(compile=compiled),
        precision=PrecisionConfig(dtype=dtype),
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_cpu_computes_in_any_type(dtype: str) -> None:
    check_device(config(dtype), CPU)


def test_a_gpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100\x1b")
    with pytest.raises(
        PilekitError, match=r'^precision.dtype = "bf16": Tesla V100\\x1b has no bfloat16; set "fp16" or "f'
    ):
        check_device(config("bf16"), GPU)
    check_device(config("fp16"), GPU)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    check_device(config("bf16"), GPU)


def test_compiling_on_a_gpu_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triton, "has_triton", lambda: False)
    with pytest.raises(
        PilekitError, match=r"^parallel.compile = true: torch.compile needs triton on a GPU; install triton, "
    ):
        check_device(config(compiled=True), GPU)
    check_device(config(), GPU)
    monkeypatch.setattr(_triton, "has_triton", lambda: True)
    check_device(config(compiled=True), GPU)


def test_compiling_on_a_cpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torch looks for it: without and with a compiler of that name in PATH."""
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, "pilekit-no-such-compiler"))
    cpp_builder.cpp_compiler_search.cache_clear()
    with pytest.raises(
        PilekitError, match=r"^parallel.compile = true: .* install g\+\+, or name one in \$CXX, or set it to f"
    ):
        check_device(config(compiled=True), CPU)
    check_device(config(), CPU)
    there = tmp_path / "pilekit-no-such-compiler"
    there.write_text("#!/bin/sh\nexit 0\n")
    there.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    cpp_builder.cpp_compiler_search.cache_clear()
    assert shutil.which(there.name)
    check_device(config(compiled=True), CPU)
    cpp_builder.cpp_compiler_search.cache_clear()
