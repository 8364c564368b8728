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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
ORDER_ON_CPU: tuple[Part, ...] = ("data", "checkpoint", "compute", "communication")
ORDER_ON_GPU: tuple[Part, ...] = ("compute", "communication", "data", "checkpoint")
"""The order in which parts take their share of the whole."""

USUAL: dict[Part, float] = {"data": 0.02, "checkpoint": 0.05, "communication": 0.15, "rest": 0.25}
"""Shares that need no advice."""

COSTLIEST = 5
_MARK = "pilekit::"
_STEP = f"{_MARK}step"
_COLLECTIVES = ("c10d::", "gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
_COMPILED = ("triton_", "graph_", "## Call CompiledFxGraph")

_LEGEND = f"""\
compute        operations of the model, the loss and the optimizer
communication  collectives that no compute hides, including the wait for the slowest rank
data wait      reading, tokenizing and packing the next rows
checkpoint     saving, as far as it blocks the loop
rest           Python between the operations; profiling itself adds to it
{TRACE_FILE} shows every operation: open it in https://ui.perfetto.dev
"""


@contextmanager
def part(name: Literal["data", "checkpoint"]) -> Iterator[None]:
    """Mark the block as waiting for data or as saving."""
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
        with record_function(_STEP):
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
    shares = {name: time / whole for name, time in times.items()}
    own_time = "self_device_time_total" if gpu else "self_cpu_time_total"  # without operations that it calls
    operations = sorted((e for e in entries if not e.is_user_annotation), key=lambda e: -getattr(e, own_time))
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
    ]
    for entry in operations[:COSTLIEST]:
        ms, calls = getattr(entry, own_time) * to_ms, entry.count / len(steps)
        lines.append(f"{visible(entry.key, 55):<57}{ms:>13.2f}{calls:>9.0f}")
    lines += ["", f"Most useful: {advice(shares, config, ranks, remedy)}", "", _LEGEND]
    return "\n".join(lines)


def times_of(entries: Iterable[Any], *, gpu: bool) -> dict[Part, float]:
    """Microseconds of each part, from a profiler's `key_averages`; they sum to the profiled steps."""
    found = dict.fromkeys(("step", *TITLES), 0.0)
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
    left = found["step"]
    times: dict[Part, float] = dict.fromkeys(TITLES, 0.0)
    for name in ORDER_ON_GPU if gpu else ORDER_ON_CPU:
        times[name] = min(left, found[name])
        left -= times[name]
    times["rest"] = left
    return times


_ADVICE: list[tuple[Part, Callable[[TrainConfig, int], bool], str]] = [
    ("checkpoint", lambda c, _: not c.checkpoint.asynchronous, "checkpoint.asynchronous = true writes beside training"),
    ("checkpoint", lambda *_: True, "save less often than every {c.checkpoint.every:,} steps (checkpoint.every)"),
    (
        "communication",
        lambda c, _: c.parallel.zero == 3,
        "parallel.zero = 2 gathers parameters once per step; `pilekit train --estimate` shows whether it fits",
    ),
    (
        "communication",
        lambda c, rows: c.parallel.zero == 2 and rows > c.train.micro_batch_size,
        "parallel.zero = 1 sends gradients once per step and not for every micro-batch, if it fits",
    ),
    (
        "communication",
        lambda *_: True,
        "more rows per step (train.global_batch_size) for the same messages, or fewer ranks",
    ),
    (
        "rest",
        lambda c, rows: rows > c.train.micro_batch_size,
        "train.micro_batch_size above {c.train.micro_batch_size} makes fewer and larger operations",
    ),
    (
        "rest",
        lambda c, _: not c.parallel.compile,
        "parallel.compile = true makes fewer and larger operations of each transformer block",
    ),
    ("rest", lambda *_: True, "more rows per step (train.global_batch_size), or fewer ranks"),
    (
        "compute",
        lambda c, _: c.precision.dtype == "fp32",
        'precision.dtype = "bf16" makes its matrix products cheaper',
    ),
    (
        "compute",
        lambda c, _: c.parallel.activation_checkpoint != "none",
        'parallel.activation_checkpoint = "none" computes nothing twice, if memory allows',
    ),
    ("compute", lambda c, _: not c.parallel.compile, "parallel.compile = true may make its operations cheaper"),
    ("compute", lambda *_: True, "only a smaller model or shorter rows would help"),
]
"""For each part: when an advice applies (config, rows of a rank per step), and its text. The first one is given."""


def advice(shares: Mapping[Part, float], config: TrainConfig, ranks: Ranks, remedy: str) -> str:
    """The first thing to change, for the part that exceeds its usual share by most."""
    worst = max(USUAL, key=lambda name: shares[name] - USUAL[name])
    took = f"{TITLES[worst]} takes {shares[worst]:.0%}: "
    if shares[worst] <= USUAL[worst]:
        worst, took = "compute", "nothing but the model itself takes much time; "
    rows = config.train.global_batch_size // ranks.world_size
    texts = (text for name, applies, text in _ADVICE if name == worst and applies(config, rows))
    return took + (remedy if worst == "data" else next(texts).format(c=config))
