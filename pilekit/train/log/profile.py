"""Where the time of some steps goes: a trace, and one page that says what of it to change.

The page adds up torch's `key_averages`. On a CPU, data and saving take the time that `part` marks, then compute that of
operations, then communication that of collectives, as far as time is left: compute hides the others. On a GPU, which
computes beside the program, compute and communication come first. The rest is Python, and waiting. So the parts add up
to the whole.

Rank 0 is profiled. `part` costs some microseconds where nobody looks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

Part = Literal["compute", "communication", "data", "checkpoint", "rest"]
TITLES: dict[Part, str] = {
    "compute": "compute",
    "communication": "communication",
    "data": "data wait",
    "checkpoint": "checkpoint",
    "rest": "rest",
}
BY_CPU: tuple[Part, ...] = ("data", "checkpoint", "compute", "communication")
BY_GPU: tuple[Part, ...] = ("compute", "communication", "data", "checkpoint")
"""Which parts take of the whole first."""

COSTLIEST = 5
_MARK = "pilekit::"
_STEP = f"{_MARK}step"
_COLLECTIVES = ("c10d::", "gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
_COMPILED = ("triton_", "graph_", "## Call CompiledFxGraph")


@contextmanager
def part(name: Literal["data", "checkpoint"]) -> Iterator[None]:
    """Mark what happens within as waiting for data or as saving."""
    with record_function(_MARK + name):
        yield


class Profile:
    """Profiles the steps of `log.profile` on rank 0; a context manager around the loop.

        with Profile(run.path / "profile", config, ranks, against_waiting(stream)) as profile:
            ...
                with profile.step(number):

    folder   where the trace and the page go
    remedy   what to do about waiting for data

    A run that ends among these steps has them profiled up to there. A page that cannot be written is a warning.
    """

    def __init__(self, folder: Path, config: TrainConfig, ranks: Ranks, remedy: str) -> None:
        self._folder, self._config, self._ranks, self._remedy = folder, config, ranks, remedy
        self._first, self._last = config.log.profile if config.log.profile and ranks.is_first else (1, 0)
        self._profiler: Any = None
        self._steps: list[int] = []

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around everything that step `number`, from 1, does."""
        if not self._first <= number <= self._last:
            yield
            return
        if self._profiler is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else its library writes two lines to stderr
            activities = [ProfilerActivity.CPU]
            if self._ranks.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profiler = torch_profile(activities=activities)
            self._profiler.start()
        with record_function(_STEP):
            yield
            self._synchronize()
        self._steps.append(number)
        if number == self._last:
            self.close()

    def close(self) -> None:
        """Write the trace and the page of the steps that were profiled, if there are any that were not written yet."""
        if self._profiler is None:
            return
        profiler, steps = self._profiler, self._steps
        self._profiler, self._steps, self._last = None, [], 0
        profiler.stop()
        if not steps:
            return
        page = page_of(profiler, steps, self._config, self._ranks, self._remedy)
        try:
            with write_atomically(self._folder / BREAKDOWN_FILE) as file:  # makes the folder too
                file.write(page.encode())
            profiler.export_chrome_trace(str(self._folder / TRACE_FILE))
        except (PilekitError, OSError, RuntimeError) as error:
            logger.warning("the profile cannot be written: %s", visible(str(error), 300))
            return
        logger.warning("%s tells where the time went", visible(str(self._folder / BREAKDOWN_FILE)))

    def __enter__(self) -> Profile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _synchronize(self) -> None:
        if self._ranks.device.type == "cuda":  # what the step has begun belongs to it
            torch.cuda.synchronize(self._ranks.device)


def page_of(profiler: Any, steps: Sequence[int], config: TrainConfig, ranks: Ranks, remedy: str) -> str:
    """The text of breakdown.txt."""
    gpu = ranks.device.type == "cuda"
    entries = profiler.key_averages()
    times = times_of(entries, gpu=gpu)
    whole = sum(times.values()) or 1.0
    shares = {name: time / whole for name, time in times.items()}
    operations = sorted((e for e in entries if not e.is_user_annotation), key=lambda e: -_own_time(e, gpu))[:COSTLIEST]
    to_ms = 1e-3 / len(steps)
    which = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    lines = [
        f"Where the time of {which} went: rank 0 of {ranks.world_size}, on "
        f"{ranks.device.type}, {config.precision.dtype}, parallel.zero = {config.parallel.zero}",
        "",
        f"{'':<16}{'share':>8}{'ms per step':>14}",
        *(f"{TITLES[name]:<16}{shares[name]:>8.1%}{times[name] * to_ms:>14.2f}" for name in TITLES),
        f"{'all':<16}{1:>8.1%}{whole * to_ms:>14.2f}",
        "",
        f"Costliest operations{'ms per step':>50}{'calls':>9}",
        *(
            f"{visible(e.key, 55):<57}{_own_time(e, gpu) * to_ms:>13.2f}{e.count / len(steps):>9.0f}"
            for e in operations
        ),
        "",
        f"Most useful: {advice(shares, config, ranks, remedy)}",
        "",
        "compute        operations of the model, the loss and the optimizer",
        "communication  collective operations that no compute hides; the wait for the slowest rank is in it",
        "data wait      reading, tokenizing and packing the next rows",
        "checkpoint     what of saving holds the loop up",
        "rest           Python between the operations; profiling itself adds to it",
        f"{TRACE_FILE} shows every operation: open it in https://ui.perfetto.dev",
    ]
    return "\n".join(lines) + "\n"


def times_of(entries: Iterable[Any], *, gpu: bool) -> dict[Part, float]:
    """Microseconds of each part, from a profiler's `key_averages`; they add up to the profiled steps."""
    found = dict.fromkeys(("step", *TITLES), 0.0)
    for entry in entries:
        name, on_gpu = entry.key, entry.device_type.name == "CUDA"
        if name.startswith(_MARK):
            found[name.removeprefix(_MARK)] += 0.0 if on_gpu else entry.cpu_time_total
        elif name.startswith(_COLLECTIVES):
            # The call of a collective for a GPU only puts it in line; its kernel is the communication.
            if on_gpu or not gpu or name.startswith("gloo:"):
                found["communication"] += entry.self_device_time_total if on_gpu else entry.cpu_time_total
        elif on_gpu:
            found["compute"] += 0.0 if entry.is_user_annotation else entry.self_device_time_total
        elif not gpu and name.startswith(("aten::", *_COMPILED)):
            found["compute"] += entry.self_cpu_time_total
    left = found["step"]
    times: dict[Part, float] = dict.fromkeys(TITLES, 0.0)
    for part_name in BY_GPU if gpu else BY_CPU:
        times[part_name] = min(left, found[part_name])
        left -= times[part_name]
    times["rest"] = left
    return times


def _own_time(entry: Any, gpu: bool) -> float:
    """Microseconds without those of the operations that it calls."""
    return float(entry.self_device_time_total if gpu else entry.self_cpu_time_total)


def advice(shares: Mapping[Part, float], config: TrainConfig, ranks: Ranks, remedy: str) -> str:
    """What to change first: it is about the part that exceeds what is usual by most."""
    usual: dict[Part, float] = {"data": 0.02, "checkpoint": 0.05, "communication": 0.15, "rest": 0.25}
    worst = max(usual, key=lambda name: shares[name] - usual[name])
    if shares[worst] <= usual[worst]:
        return _faster_compute(config)
    took = f"{TITLES[worst]} takes {shares[worst]:.0%}: "
    train, parallel = config.train, config.parallel
    rows = train.global_batch_size // ranks.world_size
    if worst == "data":
        return took + remedy
    if worst == "checkpoint":
        if not config.checkpoint.asynchronous:
            return took + "checkpoint.asynchronous = true writes beside training"
        return took + f"save less often than every {config.checkpoint.every:,} steps (checkpoint.every)"
    if worst == "communication":
        if parallel.zero == 3:
            return (
                took + "parallel.zero = 2 gathers parameters once per step; `pilekit train --estimate` tells if it fits"
            )
        if parallel.zero == 2 and rows > train.micro_batch_size:
            return took + "parallel.zero = 1 sends gradients once per step and not for every micro-batch, if it fits"
        return took + "more rows per step (train.global_batch_size) for the same messages, or fewer ranks"
    if rows > train.micro_batch_size:
        return took + f"train.micro_batch_size above {train.micro_batch_size} makes fewer and larger operations"
    if not parallel.compile:
        return took + "parallel.compile = true makes fewer and larger operations of each transformer block"
    return took + "more rows per step (train.global_batch_size), or fewer ranks"


def _faster_compute(config: TrainConfig) -> str:
    began = "nothing but the model itself takes much time; "
    if config.precision.dtype == "fp32":
        return began + 'precision.dtype = "bf16" makes its matrix products cheaper'
    if config.parallel.activation_checkpoint != "none":
        return began + 'parallel.activation_checkpoint = "none" computes nothing twice, if memory allows'
    if not config.parallel.compile:
        return began + "parallel.compile = true may make its operations cheaper"
    return began + "a smaller model or shorter rows are what is left"
