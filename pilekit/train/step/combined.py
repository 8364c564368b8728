"""`Combined`: several optimizers of different parameters, used as one.

Groups and state are those of the parts, and all parts share one state, so checkpoints see a single optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class Combined(Optimizer):
    """The optimizers `parts` as one; no parameter is in two of them."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        # The constructor of `Optimizer` would make groups and a state of its own.
        self.parts = parts
        self.defaults = {}
        self.state = parts[0].state
        self.param_groups = [group for part in parts for group in part.param_groups]
        for part in parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of each part."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)
