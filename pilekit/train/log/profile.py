"""Profiling some steps of rank 0: a trace, and one page that says where the time went and what to change.

The page adds up torch's `key_averages` so that the parts sum to the whole. On a CPU, the time that `part` marks as data
and checkpoint counts first, then operations (compute), then collectives (communication) in the remaining time, because
compute hides them. A GPU computes beside the program, so there compute and communication count first. The rest is
Python, and waiting.

`part` costs some microseconds when nothing is profiled.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible
from pilekit.train.config import TrainConfig

logger = logging.getLogger(__name__)

TRACE_FILE = "trace-rank0.json.gz"
BREAKDOWN_FILE = "breakdown.txt"

ORDER_ON_CPU = ("data", "checkpoint", "compute", "communication", "rest")
ORDER_ON_GPU = ("compute", "communication", "data", "checkpoint", "rest")
"""The parts, in the order in which they take their share of the whole."""

USUAL = {"compute": 1.0, "communication": 0.15, "data": 0.02, "checkpoint": 0.05, "rest": 0.25}
"""Shares that need no advice."""

ADVICE = {
    "compute": 'precision.dtype = "bf16", parallel.compile = true or parallel.activation_checkpoint = "none"',
    "communication": "a lower parallel.zero if it fits (--estimate), or more rows per step (train.global_batch_size)",
    "checkpoint": "save less often (checkpoint.every), and with checkpoint.asynchronous = true",
    "rest": "a larger train.micro_batch_size or parallel.compile = true, for fewer and larger operations",
}
"""The first thing to change for a part that takes too long. `against_waiting` has the remedy for data."""

COSTLIEST = 5
_MARK = "pilekit::"
_COLLECTIVES = ("c10d::", "gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
_COMPILED = ("triton_", "graph_", "## Call CompiledFxGraph")

_LEGEND = f"""\
compute        operations of the model, the loss and the optimizer
communication  collectives that no compute hides, including the wait for the slowest rank
data           waiting for the next rows to be read, tokenized and packed
checkpoint     saving, as far as it blocks the loop
rest           Python between the operations; profiling itself adds to it
{TRACE_FILE} shows every operation: open it in https://ui.perfetto.dev
"""


@contextmanager
def part(name: Literal["data", "checkpoint", "step"]) -> Iterator[None]:
    """Mark the block as waiting for data, as saving, or as a whole step."""
    with record_function(_MARK + name):
        yield


class Profile:
    """Profiles the steps of `log.profile` on rank 0; a context manager around the loop.

        with Profile(run.path / "profile", config, ranks, against_waiting(stream)) as profile:
            ...
                with profile.step(number):

    folder   where the trace and the page go
    remedy   what to do about waiting for data

    If the run ends within these steps, the page covers the steps so far. A page that cannot be written is a warning.
    """

    def __init__(self, folder: Path, config: TrainConfig, ranks: Ranks, remedy: str) -> None:
        self._folder, self._config, self._ranks, self._remedy = folder, config, ranks, remedy
        self._first, self._last = config.log.profile if config.log.profile and ranks.is_first else (1, 0)
        self._profiler: Any = None
        self._steps: list[int] = []

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around all work of step `number`, from 1."""
        if not self._first <= number <= self._last:
            yield
            return
        on_gpu = self._ranks.device.type == "cuda"
        if self._profiler is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or Kineto writes two lines to stderr
            self._profiler = torch_profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
            )
            self._profiler.start()
        with part("step"):
            yield
            if on_gpu:  # the work that the step has queued belongs to it
                torch.cuda.synchronize(self._ranks.device)
        self._steps.append(number)
        if number == self._last:
            self._write()

    def __enter__(self) -> Profile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write()

    def _write(self) -> None:
        """Stop, and write the trace and the page of the steps so far."""
        profiler, self._profiler, self._last = self._profiler, None, 0
        if profiler is None:
            return
        profiler.stop()
        if not self._steps:
            return
        page = page_of(profiler.key_averages(), self._steps, self._config, self._ranks, self._remedy)
        try:
            with write_atomically(self._folder / BREAKDOWN_FILE) as file:  # makes the folder too
                file.write(page.encode())
            profiler.export_chrome_trace(str(self._folder / TRACE_FILE))
        except (PilekitError, OSError, RuntimeError) as error:
            logger.warning("the profile cannot be written: %s", visible(str(error), 300))
            return
        logger.warning("%s shows where the time went", visible(str(self._folder / BREAKDOWN_FILE)))


def page_of(entries: Sequence[Any], steps: Sequence[int], config: TrainConfig, ranks: Ranks, remedy: str) -> str:
    """The text of breakdown.txt, from a profiler's `key_averages`."""
    gpu = ranks.device.type == "cuda"
    times = times_of(entries, gpu=gpu)
    whole = sum(times.values()) or 1.0
    own_time = "self_device_time_total" if gpu else "self_cpu_time_total"  # without operations that it calls
    operations = sorted((e for e in entries if not e.is_user_annotation), key=lambda e: -getattr(e, own_time))
    to_ms = 1e-3 / len(steps)
    worst = max(USUAL, key=lambda name: times[name] / whole - USUAL[name])
    if times[worst] / whole <= USUAL[worst]:
        worst = "compute"
    lines = [
        f"Where the time of steps {steps[0]:,} to {steps[-1]:,} went: rank 0 of {ranks.world_size}, on "
        f"{ranks.device.type}, {config.precision.dtype}, parallel.zero = {config.parallel.zero}",
        "",
        f"{'':<16}{'share':>8}{'ms per step':>14}",
        *(f"{name:<16}{times[name] / whole:>8.1%}{times[name] * to_ms:>14.2f}" for name in USUAL),
        f"{'all':<16}{1:>8.1%}{whole * to_ms:>14.2f}",
        "",
        f"Costliest operations{'ms per step':>50}{'calls':>9}",
        *(
            f"{visible(entry.key, 55):<57}{getattr(entry, own_time) * to_ms:>13.2f}{entry.count / len(steps):>9.0f}"
            for entry in operations[:COSTLIEST]
        ),
        "",
        f"Most useful: {worst} takes {times[worst] / whole:.0%}: {remedy if worst == 'data' else ADVICE[worst]}",
        "",
        _LEGEND,
    ]
    return "\n".join(lines)


def times_of(entries: Iterable[Any], *, gpu: bool) -> dict[str, float]:
    """Microseconds of each part, from a profiler's `key_averages`; they sum to the profiled steps."""
    found = dict.fromkeys(("step", *ORDER_ON_CPU), 0.0)
    for entry in entries:
        name, on_gpu = entry.key, entry.device_type.name == "CUDA"
        if name.startswith(_MARK):
            found[name.removeprefix(_MARK)] += 0.0 if on_gpu else entry.cpu_time_total
        elif name.startswith(_COLLECTIVES):
            # On a GPU, the call only queues a collective; its kernel is the communication.
            if on_gpu or not gpu or name.startswith("gloo:"):
                found["communication"] += entry.self_device_time_total if on_gpu else entry.cpu_time_total
        elif on_gpu:
            found["compute"] += 0.0 if entry.is_user_annotation else entry.self_device_time_total
        elif not gpu and name.startswith(("aten::", *_COMPILED)):
            found["compute"] += entry.self_cpu_time_total
    left = found["rest"] = found["step"]
    times = {}
    for name in ORDER_ON_GPU if gpu else ORDER_ON_CPU:
        times[name] = min(left, found[name])
        left -= times[name]
    return times
