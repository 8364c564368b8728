"""Choose the device and precision a model computes in, or say in one line why this machine lacks the device."""

from __future__ import annotations

import re

import torch

from pilekit.errors import PilekitError, shortened
from pilekit.workers.ranks import Ranks

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(name: str, ranks: Ranks) -> torch.device:
    """The device that "auto", "cpu", "cuda" or "cuda:N" means for this rank. Each of several ranks has its own GPU.

    Raises PilekitError for anything else, and for a GPU that is not there.
    """
    if name == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"auto|cuda(?::([0-9]{1,4}))?", name) if isinstance(name, str) else None
    if match is None:
        raise PilekitError(f"device is auto, cpu, cuda or cuda:N, not {shortened(name, 40)!r}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        if name == "auto":
            return torch.device("cpu")
        raise PilekitError(f"device {name}: torch finds no GPU on this machine; give cpu, or auto")
    if ranks.world_size == 1:
        number = torch.cuda.current_device() if match[1] is None else int(match[1])
    elif match[1] is None:
        number = ranks.local_rank
    else:
        raise PilekitError(f"device {name}: each of {ranks.world_size} ranks needs a GPU of its own; give cuda")
    if number >= gpus:
        raise PilekitError(
            f"rank {ranks.rank} needs cuda:{number}, but this machine has only cuda:0 to cuda:{gpus - 1}; start at "
            f"most {gpus} ranks there, or give --device cpu"
        )
    return torch.device("cuda", number)


def dtype_of(name: str, device: torch.device, stored: torch.dtype) -> torch.dtype:
    """The precision that "auto", "fp32", "bf16" or "fp16" means on `device`. `stored` is the precision of the weights.

    Raises PilekitError for anything else.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else stored
    if name not in _DTYPES:
        raise PilekitError(f"dtype is auto, fp32, bf16, fp16, int8 or int4, not {shortened(name, 40)!r}")
    return _DTYPES[name]
