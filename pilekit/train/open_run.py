"""`OpenRun`: the files and functions of a run while it trains, and the step that is launched but not yet recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from pilekit.errors import PilekitError
from pilekit.stream.batch.batch import Batch
from pilekit.train.checkpoint.saving import Checkpoints
from pilekit.train.log.metrics import StepMetrics
from pilekit.train.log.profile import Profile
from pilekit.train.run_folder import RunFolder
from pilekit.train.step.arriving import Arriving, Moment
from pilekit.train.step.step_engine import PendingUpdate, Update


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose figures may still be computed.

    figures   the losses of this rank's targets, and in fp16 the loss scale
    moments   of the device: the step began, had its batch, had its gradient, began its update, ended
    memory    bytes by kind of memory, after the gradient
    """

    batch: Batch
    targets: int
    tokens: int
    figures: Arriving
    lr: float
    update: Update | PendingUpdate
    moments: tuple[Moment, Moment, Moment, Moment, Moment]
    memory: dict[str, int]
    compilations: int


class Request(IntEnum):
    """What any rank asks of all, after a step is recorded. The largest counts."""

    NOTHING = 0
    LAST_STEP = 1
    STOP = 2
    RAISE = 3


@dataclass(slots=True, eq=False)
class OpenRun:
    """The files and functions of a run while it trains.

    interrupted   whether this rank is asked to stop
    on_step       as in `Trainer.fit`
    batches       this rank's batches from the stream's place on
    peek          returns the command that shows the documents of a step (from 1)
    launched      the newest step, if it is not recorded yet
    metrics       the figures of the newest recorded step
    failure       the newest error of this rank alone, which all ranks raise before the next update
    is_ending     the present step is the last, because a rank was asked to stop
    """

    interrupted: Callable[[], bool]
    on_step: Callable[[StepMetrics], None] | None
    folder: RunFolder
    checkpoints: Checkpoints
    batches: Iterator[Batch]
    peek: Callable[[int], str]
    profile: Profile
    sample: Callable[[int], None]
    log: Callable[[StepMetrics, dict[str, list[int]]], None]
    launched: LaunchedStep | None = None
    metrics: StepMetrics | None = None
    failure: PilekitError | None = None
    is_ending: bool = False

    @contextmanager
    def postponing(self) -> Iterator[None]:
        """Keep a PilekitError of the block as the `failure`, so that this rank stays in step with the others."""
        try:
            yield
        except PilekitError as error:
            self.failure = error
