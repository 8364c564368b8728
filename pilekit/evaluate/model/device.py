"""Where a model computes, and in which precision: what was asked for, or one line why this machine cannot.

Nothing is concluded from names here either: whether a device can compute in a precision is tried, on a few numbers.
"""

from __future__ import annotations

import re
from typing import Literal

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible

Dtype = Literal["auto", "fp32", "bf16", "fp16"]
"""A precision to compute in; "auto": float32 on a CPU, on a GPU that in which the weights are stored."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(given: str, ranks: Ranks) -> torch.device:
    """The device that "auto", "cpu", "cuda" or "cuda:N" means for this rank; among several ranks each has a GPU.

    PilekitError for anything else, and for a GPU that is not there.
    """
    if given == "cpu":
        return torch.device("cpu")
    named = re.fullmatch(r"auto|cuda(?::([0-9]{1,4}))?", given) if isinstance(given, str) else None
    if named is None:
        raise PilekitError(f"device is auto, cpu, cuda or cuda:N, not {visible(str(given), 40)!r}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        if given == "auto":
            return torch.device("cpu")
        raise PilekitError(f"device {given}: torch finds no GPU on this machine; give cpu, or auto")
    if named[1] is not None:
        if ranks.world_size > 1:
            raise PilekitError(
                f"device {given}: is one GPU, but there are {ranks.world_size} ranks, of which each needs its own; "
                "give cuda"
            )
        if int(named[1]) >= gpus:
            raise PilekitError(f"device {given}: this machine has only cuda:0 to cuda:{gpus - 1}; give one of them")
        return torch.device("cuda", int(named[1]))
    if ranks.world_size == 1:
        return torch.device("cuda", torch.cuda.current_device())
    if ranks.local_rank >= gpus:
        raise PilekitError(
            f"rank {ranks.rank} is number {ranks.local_rank} (from 0) of a machine with {gpus} GPU{'s' * (gpus > 1)}; "
            f"start at most {gpus} ranks there, or give --device cpu"
        )
    return torch.device("cuda", ranks.local_rank)


def dtype_of(given: str, device: torch.device, stored: torch.dtype) -> torch.dtype:
    """The precision that "auto", "fp32", "bf16" or "fp16" means on `device`; `stored` is that of the weights.

    PilekitError for anything else, and for one that the device cannot compute in.
    """
    if given == "auto":
        dtype = torch.float32 if device.type == "cpu" else stored
    elif given in _DTYPES:
        dtype = _DTYPES[given]
    else:
        raise PilekitError(f"dtype is auto, fp32, bf16 or fp16, not {visible(str(given), 40)!r}")
    try:
        few = torch.ones(1, 1, 2, 2, dtype=dtype, device=device)
        scaled_dot_product_attention(few, few, linear(few, few[0, 0]), is_causal=True)
    except (RuntimeError, NotImplementedError) as error:
        name = next(name for name, of in _DTYPES.items() if of == dtype)
        reason = visible(str(error).partition("\n")[0], 200)
        raise PilekitError(
            f"dtype {name}: this machine's {device.type} cannot compute in it ({reason}); give fp32"
        ) from error
    return dtype
