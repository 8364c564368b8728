"""`LogitTransform`: the operations that some models apply to each logit after the head.

Cohere multiplies its logits, Granite divides them, Gemma 2 and its successors cap them softly. config.json holds the
numbers, but their names do not say which operation uses them, or whether any does: Granite divides by `logits_scaling`,
HyperCLOVA X multiplies by it. So each number gives candidates, and `logit_transform_of` takes the first candidate that
turns the head's output into the model's own logits, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, equal

if TYPE_CHECKING:
    from transformers import PreTrainedConfig  # transformers 4 has it under another name

SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""The names of these numbers in transformers' configurations. A model has one or two of them."""


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Logits times a number, divided by a number, and then, if there is a cap, cap * tanh(logits / cap)."""

    times: float = 1.0
    over: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """The model's logits from the head's output, in its type and rounded as the model rounds; not differentiable.

        The input is not changed. A transform without effect returns it.
        """
        if self.times != 1:
            logits = logits * self.times
        if self.over != 1:
            logits = logits / self.over
        return logits if self.cap is None else (logits / self.cap).tanh_().mul_(self.cap)

    def backward_(self, grad: Tensor, finished: Tensor) -> Tensor:
        """Turn `grad`, the gradient of the `finished` logits, into that of the head's output; overwrites both.

        It works in place because each is as large as a chunk's logits.
        """
        if self.cap is not None:
            grad.mul_(finished.div_(self.cap).square_().neg_().add_(1))  # tanh' = 1 - tanh²
        if self.times != self.over:
            grad.mul_(self.times / self.over)
        return grad


UNCHANGED = LogitTransform()


def logit_transform_of(config: PreTrainedConfig, pairs: Iterable[tuple[Tensor, Tensor]]) -> LogitTransform | None:
    """The transform of a model with this configuration, or None if no candidate fits.

    pairs   pairs of (the head's output, the model's logits), which the transform must reproduce exactly
    """
    pairs = list(pairs)
    for transform in _candidates(config):
        if all(same_numbers(transform(output), logits) for output, logits in pairs):
            return transform
    return None


def same_numbers(left: Any, right: Any) -> bool:
    """Whether two tensors hold the same numbers, perhaps in different precisions."""
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
    """The configuration's values under these names, if a logit can be divided by them."""
    values = (getattr(config.get_text_config(), name, None) for name in names)
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value) and value != 0]
