"""Profiling some steps of rank 0: torch's trace, and one page that says where the time went and what to change.

The page has the shares of the parts that `part` marks, of computing and of communication, the first thing to change,
and torch's table of the costliest operations. `part` costs some microseconds when nothing is profiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.train.config.sections import TrainConfig
from pilekit.workers.ranks import Ranks

logger = message_logger(__name__)

TRACE_FILE = "trace-rank0.json.gz"
BREAKDOWN_FILE = "breakdown.txt"

COSTLIEST = 20
MOST_DATA = 0.02
MOST_CHECKPOINT = 0.05
"""Shares of a step's time that need no advice."""
AGAINST_SAVING = "save less often (checkpoint.every), and with checkpoint.asynchronous = true"
FASTER = """\
precision.dtype = "bf16", parallel.compile = true, a larger train.micro_batch_size, \
parallel.activation_checkpoint = "none"; if collectives are high in the table, a lower parallel.zero that still fits"""

_MARK = "pilekit::"


def part(name: Literal["data", "checkpoint", "step"]) -> record_function:
    """Mark the block of a `with` as waiting for data, as saving, or as a whole step."""
    return record_function(_MARK + name)


class Profile(AbstractContextManager["Profile"]):
    """Profiles the steps of `log.profile` on rank 0; a context manager around the loop.

        with Profile(run.path / "profile", config, ranks, against_waiting(stream)) as profile:
            ...
                with profile.step(number):

    folder   the folder of the trace and the page
    remedy   advice against waiting for data

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

    def __exit__(self, *error: object) -> None:
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
            (self._folder / TRACE_FILE).unlink(missing_ok=True)  # torch would write through a link
            profiler.export_chrome_trace(str(self._folder / TRACE_FILE))
        except (PilekitError, OSError, RuntimeError) as error:
            logger.warning("the profile cannot be written: %s", shortened(error, 300))
            return
        logger.warning("%s shows where the time went", self._folder / BREAKDOWN_FILE)


def page_of(entries: Any, steps: Sequence[int], config: TrainConfig, ranks: Ranks, remedy: str) -> str:
    """The text of breakdown.txt, from a profiler's `key_averages`."""
    marks = [entry for entry in entries if entry.key.startswith(_MARK) and entry.device_type.name == "CPU"]
    seconds = {entry.key: entry.cpu_time_total / 1e6 for entry in marks}
    whole = seconds[f"{_MARK}step"]
    data, checkpoint = (seconds.get(_MARK + name, 0.0) / whole for name in ("data", "checkpoint"))
    advice = remedy if data > MOST_DATA else AGAINST_SAVING if checkpoint > MOST_CHECKPOINT else FASTER
    on_gpu = ranks.device.type == "cuda"
    order, talks = ("self_device_time_total", ("nccl",)) if on_gpu else ("self_cpu_time_total", ("FSDP::", "c10d::"))
    where, meanwhile = (" on the GPU", "partly while it computes") if on_gpu else ("", "and waiting for other ranks")
    spent = [0.0, 0.0]
    for entry in entries:
        # As in torch's total of a GPU: an annotation there lasts as long as the kernels inside, which count already.
        counts = entry.device_type.name == "CUDA" and not entry.is_user_annotation if on_gpu else entry not in marks
        spent[entry.key.startswith(talks)] += getattr(entry, order) / 1e6 / whole if counts else 0
    computing, communicating = spent
    return f"""\
Where the time of steps {steps[0]:,} to {steps[-1]:,} went: rank 0 of {ranks.world_size}, on {ranks.device.type}, \
{config.precision.dtype}, parallel.zero = {config.parallel.zero}

{1e3 * whole / len(steps):>10.2f} ms per step
{data:>10.1%} waiting for the next rows to be read, tokenized and packed (pilekit::data)
{checkpoint:>10.1%} saving, as far as it blocks the loop (pilekit::checkpoint)
{computing:>10.1%} computing{where}
{communicating:>10.1%} communicating ({", ".join(talks)}), {meanwhile}

Most useful: {advice}
{TRACE_FILE} shows every operation: open it in https://ui.perfetto.dev

{entries.table(sort_by=order, row_limit=COSTLIEST, max_name_column_width=50)}"""
