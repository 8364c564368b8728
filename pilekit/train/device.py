"""Checks that the device can do what a config asks for, before anything is placed on it."""

from __future__ import annotations

import torch

from pilekit.errors import PilekitError, visible
from pilekit.train.config import TrainConfig


def check_device(config: TrainConfig, device: torch.device) -> None:
    """Raise PilekitError, naming the field and what to set, if `device` cannot do what `config` asks for.

    bf16 needs a GPU that has it (NVIDIA's from 2020 on), or a CPU. To compile, a GPU needs triton and a CPU a C++
    compiler. Everything else runs on any device.
    """
    on_gpu = device.type == "cuda"
    if config.precision.dtype == "bf16" and on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = visible(torch.cuda.get_device_name(device), 60)
        raise PilekitError(f'precision.dtype = "bf16": {name} has no bfloat16; set "fp16" or "fp32"')
    if config.parallel.compile and (lacks := _lacks_for_compiling(on_gpu=on_gpu)):
        raise PilekitError(f"parallel.compile = true: {lacks}, or set it to false")


def _lacks_for_compiling(*, on_gpu: bool) -> str | None:
    """What torch.compile lacks here, with the remedy; None if nothing."""
    if on_gpu:
        from torch.utils._triton import has_triton

        return None if has_triton() else "torch.compile needs triton on a GPU; install triton"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "torch.compile needs a C++ compiler on a CPU; install g++, or name one in $CXX"
    return None
