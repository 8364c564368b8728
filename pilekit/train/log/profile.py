"""Where the time of some steps goes: a trace, and one page that says what of it to change.

Every moment of the profiled steps is one thing, in this order: on a CPU it is spent waiting for data or saving if the
program says so, else computing if an operation runs, else communicating if a collective operation is under way (so it
is only what computing does not hide), else it is the rest: Python, and waiting for whoever is slower. A GPU computes
beside the program, so there a moment in which it computes is compute, whatever the program does meanwhile. So the parts
add up to the whole.

Rank 0 is profiled. What the program does is marked by `part`, which costs some microseconds where nobody looks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
"""What a moment counts as if it is more than one of these: the first."""

COSTLIEST = 5
_MARK = "pilekit::"
_STEP = f"{_MARK}step"
_COLLECTIVES = ("c10d::", "gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
_COMPILED = ("triton_", "graph_", "## Call CompiledFxGraph")

Spans = Sequence[tuple[float, float]]


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


@dataclass(frozen=True, slots=True)
class Operation:
    """One of the costliest: its name, milliseconds and calls per step."""

    name: str
    ms: float
    calls: float


def page_of(profiler: Any, steps: Sequence[int], config: TrainConfig, ranks: Ranks, remedy: str) -> str:
    """The text of breakdown.txt."""
    gpu = ranks.device.type == "cuda"
    spans = spans_of(profiler.events(), gpu=gpu)
    times = shared_time(spans["step"], spans, BY_GPU if gpu else BY_CPU)
    whole = sum(times.values()) or 1.0
    shares = {name: time / whole for name, time in times.items()}
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
            f"{visible(one.name, 55):<57}{one.ms:>13.2f}{one.calls:>9.0f}"
            for one in _costliest(profiler, gpu, len(steps))
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


def spans_of(events: Iterable[Any], *, gpu: bool) -> dict[str, Spans]:
    """(begin, end) in microseconds of the steps ("step") and of each part, from a profiler's events."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("step", *TITLES)}
    for event in events:
        name, on_gpu = event.name, event.device_type.name == "CUDA"
        if name.startswith(_MARK):
            kind = None if on_gpu else name.removeprefix(_MARK)
        elif name.startswith(_COLLECTIVES):
            # The call of a collective for a GPU only puts it in line; its kernel is the communication.
            kind = "communication" if on_gpu or name.startswith("gloo:") or not gpu else None
        elif on_gpu:
            kind = None if event.is_user_annotation else "compute"
        else:
            kind = "compute" if not gpu and name.startswith(("aten::", *_COMPILED)) else None
        if kind is not None:
            found[kind].append((event.time_range.start, event.time_range.end))
    return dict(found)


def shared_time(whole: Spans, spans: Mapping[str, Spans], order: Sequence[Part]) -> dict[Part, float]:
    """How much of `whole` is each part: a moment counts for the first of `order` that has it, or else for "rest"."""
    left = _union(whole)
    times: dict[Part, float] = dict.fromkeys(TITLES, 0.0)
    for name in order:
        without = _without(left, _union(spans[name]))
        times[name] = _length(left) - _length(without)
        left = without
    times["rest"] = _length(left)
    return times


def _union(spans: Spans) -> list[tuple[float, float]]:
    """The same moments as spans that are apart and in order."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _without(spans: Spans, others: Spans) -> list[tuple[float, float]]:
    """The moments of `spans` that are not in `others`; both apart and in order, as is what is returned."""
    left: list[tuple[float, float]] = []
    at = 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        here = at
        while here < len(others) and others[here][0] < end:
            if others[here][0] > begin:
                left.append((begin, others[here][0]))
            begin = max(begin, others[here][1])
            here += 1
        if begin < end:
            left.append((begin, end))
    return left


def _length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def _costliest(profiler: Any, gpu: bool, steps: int) -> list[Operation]:
    """By the time that is their own, without that of the operations they call."""

    def own(entry: Any) -> float:
        return float(entry.self_device_time_total if gpu else entry.self_cpu_time_total)

    entries = [entry for entry in profiler.key_averages() if not entry.is_user_annotation]
    entries = sorted((entry for entry in entries if own(entry) > 0), key=own, reverse=True)[:COSTLIEST]
    return [Operation(entry.key, own(entry) * 1e-3 / steps, entry.count / steps) for entry in entries]


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
