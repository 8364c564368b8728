"""How the CPU learns the figures of a step without stopping the device that computes them.

A GPU works on what the CPU has launched before. A CPU that reads a number waits until the number is there, and then has
nothing more launched, so the GPU waits in turn. Therefore a step only begins to copy its figures (`Arriving`), and they
are read while the next step runs. `Arriving.read` is the only place where a step's work is waited for.

The device also keeps the time (`Moment`): a launch takes the CPU no time that would say anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor


class Moment:
    """A moment of a device's work: of a CPU now, of a GPU when it has done everything launched so far."""

    def __init__(self, device: torch.device) -> None:
        self._time = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Wait until it has come."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Moment) -> float:
        """The seconds since an earlier moment of the same device. Both must have come."""
        if self._event is not None and earlier._event is not None:
            return float(earlier._event.elapsed_time(self._event)) / 1000
        return self._time - earlier._time


class Arriving:
    """Copies of tensors on their way to the CPU. The tensors must not change in place, unless they are a GPU's."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._copies = [
            tensor.detach().to("cpu", non_blocking=True) for tensor in tensors
        ]  # a GPU's into pinned memory
        self._copied = Moment(device)

    def read(self) -> list[Tensor]:
        """The tensors, once they are there."""
        self._copied.wait()
        return self._copies
