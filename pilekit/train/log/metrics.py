"""`metrics.jsonl`: one line of JSON for every logged step.

`step` counts steps done: the line of step N and the checkpoint of step N tell of the same moment. So resuming from
checkpoint N keeps the lines up to N and drops the rest, which will be written again, and the file ends up as if the
run had never been stopped. A line is written by one call, so only a full disk or a cut of power can tear the last one.
What a full disk does not take waits in memory until there is room, so that it costs neither a line nor the run.

Every number is finite: JSON has no others, and a loss or gradient that is not a number means that the run is lost. The
one exception is a step that is skipped, because its gradient overflowed in fp16 or no row has a token to predict:
`grad_norm` is null there, and `loss` may be.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import sys
from collections import deque
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType

import msgspec
import torch

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, visible
from pilekit.evaluate.results.result import BitsPerByte

logger = logging.getLogger(__name__)

MOST_HELD = 1 << 16
"""Lines that wait for room on the disk: some tens of megabytes."""


class StepBitsPerByte(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte of the held-out documents, after a step; null where there is no byte to count."""

    overall: float | None
    """Of all documents, weighed by their bytes."""
    subsets: dict[str, float | None]
    """Of each subset that has documents."""

    @classmethod
    def of(cls, result: BitsPerByte) -> StepBitsPerByte:
        """The figures of an evaluation."""
        return cls(overall=result.overall.bpb, subsets={name: score.bpb for name, score in result.subsets.items()})


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of one step; unknown fields, from a later pilekit, are passed over when reading."""

    step: int
    """Steps done, this one included."""
    loss: float | None
    """Mean negative log-likelihood of the step's target tokens, in nats; null where it overflowed in fp16, or there is
    none."""
    loss_by_subset: dict[str, float]
    """The same by subset, for those that have a target in this step."""
    lr: float
    """The learning rate that this step used."""
    grad_norm: float | None
    """The gradient's norm before clipping; null in a step that was skipped."""
    tokens: int
    """Tokens trained on since the run began, padding not counted."""
    tokens_per_second: float
    """Of this step."""
    data_wait: float
    """Share of the step that was spent waiting for data, 0 to 1; that of the rank that waited longest."""
    step_seconds: float
    """How long the step took."""
    memory_bytes: int = 0
    """The most memory that any rank had in the step: on a GPU the peak of what tensors took, on a CPU what the process
    had resident at its end. 0 in lines of a pilekit that did not measure it."""
    loss_scale: float | None = None
    """What fp16 multiplied the loss with in this step; null in other precisions."""
    skipped: int = 0
    """Steps since the run began, this one included, that changed no weight: whose gradient overflowed in fp16, or in
    which there was no token to predict. They count among `step` and `tokens`."""
    bpb: StepBitsPerByte | msgspec.UnsetType = msgspec.UNSET
    """Bits per byte after this step; missing where nothing was evaluated."""


class MetricsLog:
    """Appends to a run's metrics; a context manager.

    path          the file, made if missing
    resume_step   the step that training goes on from: lines of later steps are dropped, and a torn last line. 0: all

    PilekitError where the file cannot be read or made, or where a line is no metrics of pilekit. Lines that cannot be
    written later wait, and are tried again with each new one and at the end: the first such failure is a warning.
    """

    def __init__(self, path: Path, *, resume_step: int) -> None:
        check_target(path)
        self._path = path
        self._held: deque[tuple[int, bytes]] = deque()  # step, what is left to write of its line
        self._is_told = False
        _drop_later(path, resume_step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, alone=True), "a")
        except OSError as error:
            raise _not_written(path, error) from error

    def write(self, metrics: StepMetrics) -> None:
        """Append one line, at once or when there is room.

        PilekitError for a number that is infinite or NaN, and if `MOST_HELD` lines wait already.
        """
        _refuse_infinities(metrics)
        if len(self._held) >= MOST_HELD:
            raise PilekitError(
                f"{visible(str(self._path))}: has not been writable since step {self._held[0][0]:,}, and no more lines "
                "are kept in memory; make room and run the same command again"
            )
        self._held.append((metrics.step, msgspec.json.encode(metrics) + b"\n"))
        error = self._write_held()
        if error is not None and not self._is_told:
            self._is_told = True
            logger.warning(
                "%s; training goes on, and lines from step %s on wait in memory until there is room",
                _not_written(self._path, error),
                f"{self._held[0][0]:,}",
            )

    def close(self) -> None:
        """Write what waits and close the file. PilekitError where that cannot be written, which is then lost."""
        error = self._write_held()
        lost = list(self._held)
        self._held.clear()
        self._file.close()
        if error is not None:
            raise PilekitError(
                f"{_not_written(self._path, error)}; it lacks the figures from step {lost[0][0]:,} on, nothing else is "
                "lost; make room before the run goes on"
            ) from error

    def _write_held(self) -> OSError | None:
        """Write what there is room for; why there is none for the rest."""
        try:
            while self._held:
                step, line = self._held[0]
                while line:
                    line = line[self._file.write(line) :]
                    self._held[0] = step, line
                self._held.popleft()
        except OSError as error:
            return error
        return None

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except PilekitError as unwritten:
            if error is None:
                raise
            logger.warning("%s", unwritten)  # what ended the run is told by who raised it


def read_metrics(path: str | Path) -> list[StepMetrics]:
    """The metrics in a file, in its order; a torn last line, as a run that is being killed may leave, is passed over.

    PilekitError, with the line, where a line is no metrics of pilekit.
    """
    return [metrics for _, metrics in _lines(Path(path))]


def _lines(path: Path) -> Iterator[tuple[bytes, StepMetrics]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    metrics = msgspec.json.decode(line, type=StepMetrics)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):
                        return
                    raise PilekitError(
                        f"{visible(str(path))}, line {number:,}: is no metrics of pilekit "
                        f"({visible(str(error), 200)}); remove that line, or move the file away"
                    ) from error
                yield line, metrics
    except OSError as error:
        raise PilekitError(f"{visible(str(path))}: cannot be read: {error.strerror}") from error


def _drop_later(path: Path, resume_step: int) -> None:
    """Leave the lines up to `resume_step`, each of them whole; the file is not touched if it has no others."""
    if not path.exists():
        return
    whole = sum(len(line) for line, metrics in _lines(path) if metrics.step <= resume_step and line.endswith(b"\n"))
    if whole != path.stat().st_size:
        with write_atomically(path) as file:
            for line, metrics in _lines(path):
                if metrics.step <= resume_step:
                    file.write(line.removesuffix(b"\n") + b"\n")


def step_memory(device: torch.device) -> int:
    """This process's `memory_bytes` of the step that has just ended; on a GPU the count of the next step begins."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (read at every step)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most it ever had
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def numbers_of(metrics: StepMetrics) -> Iterator[tuple[str, float]]:
    """(name, number) of every figure but `step`: a field's name, or "loss_by_subset/NAME", "bpb/overall", "bpb/NAME".

    What a line has as null or leaves out is not among them.
    """
    for field in metrics.__struct_fields__:
        value = getattr(metrics, field)
        by_name = []
        if isinstance(value, StepBitsPerByte):
            by_name = [("overall", value.overall), *value.subsets.items()]
        elif isinstance(value, dict):
            by_name = list(value.items())
        elif isinstance(value, int | float) and field != "step":
            yield field, value
        yield from ((f"{field}/{name}", number) for name, number in by_name if number is not None)


def _refuse_infinities(metrics: StepMetrics) -> None:
    for name, number in numbers_of(metrics):
        if not math.isfinite(number):
            raise PilekitError(
                f"step {metrics.step:,}: {visible(name, 80)} is {number}, so the run is lost; "
                "lower optimizer.lr or lengthen schedule.warmup, and go on from the last checkpoint"
            )


def _not_written(path: Path, error: OSError) -> PilekitError:
    return PilekitError(f"{visible(str(path))}: cannot be written: {error.strerror}")
