"""Count how often a step compiles code again.

torch.compile makes code for the shapes and settings that it has seen. For any other input it compiles again, which
takes seconds, and after `torch._dynamo.config.recompile_limit` times the code runs uncompiled. The inputs of a step
always have the same shapes, so nothing may be compiled after a process's second step.
"""

from __future__ import annotations

from typing import Any

from pilekit.errors import counted, message_logger, shortened

logger = message_logger(__name__)

EXPECTED = 2
"""Steps of a process in which code is compiled."""


class Compilations:
    """The compilations of the steps of a process."""

    def __init__(self) -> None:
        self._known = self._all()
        self._steps = self._count = 0

    def end_micro_batch(self, *, last: bool) -> None:
        """Count the compilations since the last call. Those of a later step are a warning with the reason."""
        known, self._known = self._known, self._all()
        new = [each for each in self._known if not any(each is other for other in known)]
        self._count += len(new)
        if new and self._steps >= EXPECTED:
            reason = new[0].recompile_reason or "it was not used before"
            logger.warning(
                "step %d since the start: torch.compile has compiled %s again, which costs time (%s: %s)",
                self._steps + 1,
                counted(len(new), "function"),
                new[0].co_name,
                shortened(" ".join(reason.split()), 200),
            )
        self._steps += last

    def take(self) -> int:
        """The number of compilations since the last call."""
        count, self._count = self._count, 0
        return count

    @staticmethod
    def _all() -> list[Any]:
        """The newest compilations of forward passes. A backward pass is compiled with its forward pass."""
        import torch._dynamo.utils  # takes seconds

        return [each for each in torch._dynamo.utils.get_compilation_metrics() if each.co_name is not None]
