"""What a step computes with.

Parameters, their gradients and the optimizer's state are float32 throughout: the masters. In bf16 and fp16 a block's
parameters are gathered as copies in that type, so forward and backward are made of it whole, and gradients are widened
before they are added up, over micro-batches and over ranks. bfloat16 has float32's range; fp16 has not, and comes with
a loss scale.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def policy(dtype: Literal["fp32", "bf16", "fp16"]) -> MixedPrecisionPolicy:
    """What FSDP gathers parameters in, and what it adds gradients up in."""
    if dtype == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[dtype], reduce_dtype=torch.float32)
