"""The dynamic loss scale of fp16, which keeps small gradients from vanishing.

fp16 knows nothing below 6e-8, so the loss is multiplied by a large scale, and the gradient is divided by it again in
float32. A scale that is too large makes a gradient overflow: the step is skipped and the scale halved. After a window
of steps without an overflow it is doubled, so it stays just below what overflows. One overflow may be a single odd
batch: with a hysteresis of 2, the first since the scale last proved itself skips its step and leaves the scale. An
overflow at the floor is no matter of scale any more, and ends the run instead of skipping steps for ever.

All ranks see the same gradient norm, so they scale alike without asking each other.
"""

from __future__ import annotations

from typing import Any

from pilekit.errors import PilekitError, visible


class LossScale:
    """What the loss is multiplied by (`value`), moved by `update` after every step.

    initial     the first scale
    window      steps in a row without an overflow, after which the scale is doubled and the hysteresis is whole again
    hysteresis  overflows until the scale is halved; once used up, each further one halves it
    floor       the lowest scale
    """

    def __init__(self, *, initial: float, window: int, hysteresis: int, floor: float) -> None:
        self.value = initial
        self._window, self._hysteresis, self._floor = window, hysteresis, floor
        self._good_steps = 0
        self._patience = hysteresis

    def update(self, *, overflow: bool) -> None:
        """Take note of a step, whether its gradient overflowed; PilekitError if it did at the floor."""
        if not overflow:
            self._good_steps += 1
            if self._good_steps == self._window:
                self.value, self._good_steps, self._patience = self.value * 2, 0, self._hysteresis
            return
        self._good_steps = 0
        if self._patience > 1:
            self._patience -= 1
        elif self.value > self._floor:
            self.value = max(self.value / 2, self._floor)
        else:
            raise PilekitError(
                f"the gradient overflows fp16 even at the lowest loss scale ({self.value:g}): training has diverged; "
                'lower optimizer.lr or lengthen schedule.warmup, or set precision.dtype = "bf16"'
            )

    def state_dict(self) -> dict[str, Any]:
        """Numbers by name, for a checkpoint."""
        return {"value": self.value, "good_steps": self._good_steps, "patience": self._patience}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; window, hysteresis and floor are this one's own."""
        try:
            value, good_steps, patience = float(state["value"]), int(state["good_steps"]), int(state["patience"])
        except (KeyError, TypeError, ValueError) as error:
            raise PilekitError(
                f"the loss scale of a checkpoint is damaged ({visible(repr(state), 200)}); go on from an earlier one"
            ) from error
        self.value = max(value, self._floor)
        self._good_steps, self._patience = min(good_steps, self._window - 1), min(patience, self._hysteresis)
