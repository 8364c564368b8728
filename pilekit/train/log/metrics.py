"""`metrics.jsonl`: one line of JSON for every logged step.

`step` counts steps done, so the line of step N and the checkpoint of step N describe the same moment. Resuming from
checkpoint N keeps the lines up to N and drops later ones, which will be written again: the file ends up as if the run
had never stopped. One call writes a line, so only a full disk or a power cut can tear the last line. Lines that a full
disk refuses wait in memory until there is room, so neither a line nor the run is lost.

Every number is finite: JSON has no others, and a loss or gradient that is not a number ends the run. A skipped step,
whose gradient overflowed in fp16 or which had no token to predict, has `grad_norm` null, and perhaps `loss` too.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from pilekit.artifacts.atomic_write import check_target, write_atomically
from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, message_logger, shortened

if TYPE_CHECKING:
    import torch  # imported on use: reading metrics does not need it, and it takes seconds

logger = message_logger(__name__)


class StepBitsPerByte(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte of the held-out documents after a step; null where there is no byte to count."""

    overall: float | None
    """All documents, weighted by their bytes."""
    subsets: dict[str, float | None]
    """Each subset that has documents."""


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one step. Unknown fields, from a later pilekit, are ignored when reading."""

    step: int
    """Steps done, this one included."""
    loss: float | None
    """Mean negative log-likelihood of the step's target tokens, in nats; null if it overflowed in fp16, or if the step
    has no target."""
    loss_by_subset: dict[str, float]
    """The same for each subset with a target in this step."""
    lr: float
    """The learning rate of this step."""
    lr_by_group: dict[str, float] = {}
    """The same for each group of parameters with a rate of its own: "decay", "no_decay" or "muon", with the group's
    share of the rate if that is not 1, as in "decay*0.5". Empty in lines of a pilekit that did not record it."""
    grad_norm: float | None
    """The gradient's norm before clipping; null in a skipped step."""
    update_norm: float | None = None
    """Norm of the step's change to all weights; null in a skipped step, and with other engines than the native."""
    tokens: int
    """Tokens trained on since the run began, without padding."""
    padding: float = 0.0
    """Share of the step's rows that is padding, 0 to 1. 0 in lines of a pilekit that did not count it."""
    tokens_per_second: float
    """Speed of this step."""
    data_wait: float
    """Share of the step spent waiting for data, 0 to 1, on the rank that waited longest."""
    step_seconds: float
    """Duration of the step."""
    memory_bytes: int = 0
    """The most memory of any rank in the step: on a GPU the peak of tensors, on a CPU the process's resident memory at
    the end of the step. 0 in lines of a pilekit that did not measure it."""
    mfu: float | None = None
    """Share of the GPU's published peak that the step used, 0 to 1; null if the peak is not known, in fp32, and if
    parameters are frozen."""
    compilations: int = 0
    """Functions that torch.compile compiled in this step on rank 0. Only the first step of a start should have any."""
    loss_scale: float | None = None
    """The factor of the loss in fp16; null in other precisions."""
    skipped: int = 0
    """Steps since the run began that changed no weight: the gradient overflowed in fp16, or there was no token to
    predict. They count among `step` and `tokens`."""
    epochs_by_subset: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """With `[[data.schedule]]`: documents of each subset that the run has begun, by the subset's documents."""
    bpb: StepBitsPerByte | msgspec.UnsetType = msgspec.UNSET
    """Bits per byte after this step; missing if nothing was evaluated."""


class StepSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of samples.jsonl: how the model of a step continues a prompt. Fields as in `pilekit generate`."""

    step: int
    prompt: str
    text: str
    model: str
    tokens: int
    ended: bool
    shard: str | None = None
    number: int | None = None
    subset: str | None = None


Line = TypeVar("Line", StepMetrics, StepSample)


class StepLog(AbstractContextManager["StepLog[Line]"], Generic[Line]):
    """Appends lines of steps to a file of a run; a context manager.

    path          the file, made if missing
    kind          the type of its lines
    resume_step   the step from which training resumes: lines of later steps and a torn last line are dropped

    Raises PilekitError if the file cannot be read or made, or if a line is not pilekit's. Lines that cannot be written
    later wait and are tried again. The first such failure is a warning.
    """

    def __init__(self, path: Path, kind: type[Line], *, resume_step: int) -> None:
        check_target(path)
        self._path = path
        self._waiting = bytearray()
        self._waiting_since: int | None = None
        _drop_later(path, kind, resume_step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, alone=True), "a")
        except OSError as error:
            raise _not_written(path, error) from error

    def write(self, metrics: Line) -> None:
        """Append one line, now or when there is room.

        Raises PilekitError for a number that is infinite or NaN.
        """
        for name, number in numbers_of(metrics):
            if not math.isfinite(number):
                raise PilekitError(
                    f"step {metrics.step:,}: {shortened(name, 80)} is {number}, so the run is lost; "
                    "lower optimizer.lr or lengthen schedule.warmup, and resume from the last checkpoint"
                )
        self._waiting += msgspec.json.encode(metrics) + b"\n"
        error = self._flush()
        if error is not None and self._waiting_since is None:
            self._waiting_since = metrics.step
            waiting = f"training continues, and lines from step {metrics.step:,} on wait in memory until there is room"
            logger.warning("%s; %s", _not_written(self._path, error), waiting)

    def close(self) -> None:
        """Write the waiting lines and close the file. Raises PilekitError if they cannot be written and are lost."""
        error = self._flush()
        self._waiting.clear()
        self._file.close()
        if error is not None:
            raise PilekitError(
                f"{_not_written(self._path, error)}; it lacks the figures from step {self._waiting_since:,} on, "
                "nothing else is lost; make room before the run resumes"
            ) from error

    def _flush(self) -> OSError | None:
        """Write as many waiting bytes as fit; returns why the rest does not."""
        try:
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]
        except OSError as error:
            return error
        self._waiting_since = None
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except PilekitError as unwritten:
            if error is None:
                raise
            logger.warning("%s", unwritten)  # the other error ended the run


def read_metrics(path: str | Path) -> list[StepMetrics]:
    """The lines of a metrics file, in order. A torn last line, which a killed run may leave, is skipped.

    Raises PilekitError, with the number of the line, if a line is not pilekit's.
    """
    return [metrics for _, metrics in _lines(Path(path), StepMetrics)]


def read_samples(path: str | Path) -> list[StepSample]:
    """The same for the lines of samples.jsonl."""
    return [sample for _, sample in _lines(Path(path), StepSample)]


def _lines(path: Path, kind: type[Line]) -> Iterator[tuple[bytes, Line]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    metrics = msgspec.json.decode(line, type=kind)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):
                        return
                    raise PilekitError(
                        f"{path}, line {number:,}: is not a line of pilekit's metrics or samples "
                        f"({reason_of_damage(error)}); remove that line, or move the file away"
                    ) from error
                yield line, metrics
    except OSError as error:
        raise PilekitError(f"{path}: cannot be read: {error.strerror}") from error


def _drop_later(path: Path, kind: type[Line], resume_step: int) -> None:
    """Keep the whole lines up to `resume_step`. The file is not rewritten if it has no others."""
    if not path.exists():
        return
    whole = sum(
        len(line) for line, metrics in _lines(path, kind) if metrics.step <= resume_step and line.endswith(b"\n")
    )
    if whole != path.stat().st_size:
        with write_atomically(path) as file:
            for line, metrics in _lines(path, kind):
                if metrics.step <= resume_step:
                    file.write(line.removesuffix(b"\n") + b"\n")


def step_memory(device: torch.device) -> dict[str, int]:
    """Bytes at the end of a step: "CPU", this process's resident memory, and on a GPU "GPU", the step's peak.

    The peak is then reset for the next step.
    """
    memory = {"CPU": _resident()}
    if device.type == "cuda":
        import torch

        memory["GPU"] = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    return memory


def _resident() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (read at every step)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the peak since the start
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def numbers_of(metrics: StepMetrics | StepSample) -> Iterator[tuple[str, float]]:
    """(name, number) of every figure except `step` and nulls.

    A name is that of a field, "loss_by_subset/NAME", "bpb/overall" or "bpb/NAME".
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


def _not_written(path: Path, error: OSError) -> PilekitError:
    return PilekitError(f"{path}: cannot be written: {error.strerror}")
