"""`LogitTransform`: what some models still do to each logit after the head, known exactly enough to be done in chunks.

Cohere multiplies its logits, Granite divides them, Gemma 2 and those after it cap them softly. A config.json holds the
numbers, but its words for them neither say what is done (by `logits_scaling` Granite divides and HyperCLOVA X
multiplies) nor that anything is. So they make candidates only, and `logit_transform_of` takes the first candidate that
turns the head's output into the model's own logits, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, equal
from transformers import PreTrainedConfig

SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""The words for such numbers in the configurations that transformers knows, of which a model has one or two."""


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Logits times a number, divided by a number, and then, where there is a cap, cap * tanh(logits / cap)."""

    times: float = 1.0
    over: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """The model's logits of what its head gave, in that type, rounded where the model rounds; not differentiable.

        What is given stays as it is; where nothing is done, it is what is returned.
        """
        if self.times != 1:
            logits = logits * self.times
        if self.over != 1:
            logits = logits / self.over
        return logits if self.cap is None else (logits / self.cap).tanh_().mul_(self.cap)

    def backward_(self, grad: Tensor, finished: Tensor) -> Tensor:
        """Turn `grad`, that of the `finished` logits, into that of what the head gave; overwrites both.

        In place, because each is as large as a chunk's logits.
        """
        if self.cap is not None:
            grad.mul_(finished.div_(self.cap).square_().neg_().add_(1))  # tanh' = 1 - tanh²
        if self.times != self.over:
            grad.mul_(self.times / self.over)
        return grad


UNCHANGED = LogitTransform()


def logit_transform_of(config: PreTrainedConfig, seen: Iterable[tuple[Tensor, Tensor]]) -> LogitTransform | None:
    """The transform of a model with this configuration; None if it is none that this module knows.

    seen   (what the head gave, the model's logits), of which every number must be explained
    """
    seen = list(seen)
    for transform in _candidates(config):
        if all(same_numbers(transform(given), logits) for given, logits in seen):
            return transform
    return None


def same_numbers(left: Any, right: Any) -> bool:
    """Whether two tensors hold the same numbers, be it in different precisions."""
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape != right.shape:
        return False
    return equal(left.double().nan_to_num(), right.double().nan_to_num())


def _candidates(config: PreTrainedConfig) -> Iterator[LogitTransform]:
    scales, caps = _numbers(config, SCALES), _numbers(config, CAPS)
    for cap in (None, *caps):
        yield LogitTransform(cap=cap)
        yield from (LogitTransform(times=scale, cap=cap) for scale in scales)
        yield from (LogitTransform(over=scale, cap=cap) for scale in scales)


def _numbers(config: PreTrainedConfig, names: Iterable[str]) -> list[float]:
    """What the configuration has under these names, as far as it can be divided by."""
    values = (getattr(config.get_text_config(), name, None) for name in names)
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value) and value != 0]
