"""What a step computes with.

Parameters, their gradients and the optimizer's state are float32 throughout: the masters. bf16 is a matter of the
forward pass alone: autocast makes matrix products from copies in bfloat16, and autograd's way back follows it. bfloat16
has float32's range, so no loss is scaled.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import torch


def autocast(dtype: Literal["fp32", "bf16"], device: torch.device) -> AbstractContextManager[None]:
    """The context of a forward pass on `device`; "fp32" also ends an autocast that is on around it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bf16")
