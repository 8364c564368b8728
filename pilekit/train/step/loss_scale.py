"""The dynamic loss scale of fp16, which keeps small gradients from vanishing.

The smallest number of fp16 is 6e-8, so the loss is multiplied by a large scale, and the gradient is divided by it again
in float32. If the scale is too large, a gradient overflows: the step is skipped and the scale halved. After a window of
steps without an overflow the scale doubles, so it stays just below overflowing. One overflow may be a single odd batch:
with a hysteresis of 2, the first overflow since the last doubling skips its step but keeps the scale. An overflow at
the floor ends the run, because no smaller scale would help.

All ranks see the same gradient norm, so their scales agree without messages. The numbers are tensors beside the
gradient, and nothing reads them for a step: the next forward needs the scale before anybody knows of an overflow.
"""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from pilekit.train.config.sections import PrecisionConfig


class LossScaleState(TypedDict):
    """The numbers of a `LossScale`, for a checkpoint."""

    value: float
    good_steps: int
    patience: int


class LossScale:
    """The factor of the loss (`value`, 0-d, float64, on `device`), replaced by `update` after every step."""

    value: Tensor
    _good_steps: Tensor
    _patience: Tensor

    def __init__(self, config: PrecisionConfig, device: torch.device) -> None:
        self._device = device
        self._window, self._floor = config.loss_scale_window, config.loss_scale_floor
        self._hysteresis = config.loss_scale_hysteresis
        self._set(config.loss_scale, 0, self._hysteresis)

    def update(self, overflow: Tensor) -> Tensor:
        """Record whether the step's gradient overflowed. Returns whether it did at the floor, which ends the run."""
        is_final = overflow & (self._patience <= 1)  # no further overflow is forgiven
        good_steps = torch.where(overflow, 0, self._good_steps + 1)
        doubles = good_steps == self._window
        at_floor = is_final & (self.value <= self._floor)
        halved = torch.where(is_final, (self.value / 2).clamp(min=self._floor), self.value)
        self.value = torch.where(doubles, self.value * 2, halved)
        patience = torch.where(overflow.logical_and(is_final.logical_not()), self._patience - 1, self._patience)
        self._patience = torch.where(doubles, self._hysteresis, patience)
        self._good_steps = torch.where(doubles, 0, good_steps)
        return at_floor

    def state_dict(self) -> LossScaleState:
        """Numbers by name, for a checkpoint. This waits for the device."""
        good_steps, patience = int(self._good_steps), int(self._patience)
        return {"value": float(self.value), "good_steps": good_steps, "patience": patience}

    def load_state_dict(self, state: LossScaleState) -> None:
        """Continue from a `state_dict`. Window, hysteresis and floor stay those of this config."""
        good_steps, patience = min(state["good_steps"], self._window - 1), min(state["patience"], self._hysteresis)
        self._set(max(state["value"], self._floor), good_steps, patience)

    def _set(self, value: float, good_steps: int, patience: int) -> None:
        self.value = torch.full((), value, dtype=torch.float64, device=self._device)
        self._good_steps = torch.full((), good_steps, dtype=torch.int64, device=self._device)
        self._patience = torch.full((), patience, dtype=torch.int64, device=self._device)
