"""The dynamic loss scale of fp16, which keeps small gradients from vanishing.

The smallest number of fp16 is 6e-8, so the loss is multiplied by a large scale, and the gradient is divided by it again
in float32. If the scale is too large, a gradient overflows: the step is skipped and the scale halved. After a window of
steps without an overflow the scale doubles, so it stays just below overflowing. One overflow may be a single odd batch:
with a hysteresis of 2, the first overflow since the last doubling skips its step but keeps the scale. An overflow at
the floor ends the run, because no smaller scale would help.

All ranks see the same gradient norm, so their scales agree without messages.
"""

from __future__ import annotations

from typing import TypedDict

from pilekit.train.config.sections import PrecisionConfig


class LossScaleState(TypedDict):
    """The numbers of a `LossScale`, for a checkpoint."""

    value: float
    good_steps: int
    patience: int


class LossScale:
    """The factor of the loss (`value`), adjusted by `update` after every step."""

    def __init__(self, config: PrecisionConfig) -> None:
        self.value = config.loss_scale
        self._window, self._floor = config.loss_scale_window, config.loss_scale_floor
        self._hysteresis = config.loss_scale_hysteresis
        self._good_steps = 0
        self._patience = self._hysteresis

    def update(self, *, overflow: bool) -> bool:
        """Record whether the step's gradient overflowed; False if it did at the floor, which ends the run."""
        if not overflow:
            self._good_steps += 1
            if self._good_steps == self._window:
                self.value, self._good_steps, self._patience = self.value * 2, 0, self._hysteresis
            return True
        self._good_steps = 0
        if self._patience > 1:
            self._patience -= 1
        elif self.value > self._floor:
            self.value = max(self.value / 2, self._floor)
        else:
            return False
        return True

    def state_dict(self) -> LossScaleState:
        """Numbers by name, for a checkpoint."""
        return {"value": self.value, "good_steps": self._good_steps, "patience": self._patience}

    def load_state_dict(self, state: LossScaleState) -> None:
        """Continue from a `state_dict`. Window, hysteresis and floor stay those of this config."""
        self.value = max(state["value"], self._floor)
        self._good_steps = min(state["good_steps"], self._window - 1)
        self._patience = min(state["patience"], self._hysteresis)
