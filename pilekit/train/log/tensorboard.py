"""The figures of metrics.jsonl for TensorBoard: the same numbers, names and steps.

The package is an extra, so the trainer checks for it before anything else. metrics.jsonl remains the record by which a
run is resumed and judged. A run that resumes after step N tells TensorBoard, which then hides later steps of an earlier
start.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from pilekit.errors import PilekitError, visible
from pilekit.train.log.metrics import StepMetrics, numbers_of

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 10
"""A killed run may lose the figures of this time; it writes them again when it resumes."""
LONGEST_TAG = 120


def check_tensorboard() -> None:
    """Raise PilekitError if the package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise PilekitError(
            "log.tensorboard = true: the package tensorboard is not installed; pip install 'pilekit[tensorboard]', or "
            "set log.tensorboard = false (metrics.jsonl has the same figures)"
        )


class TensorBoardLog:
    """Appends to the event files of a folder, which is made if missing; a context manager.

    resume_step   the step from which training resumes: later steps in earlier files are hidden

    Raises PilekitError if the folder cannot be made. A later failure to write ends this log with a warning; training
    continues.
    """

    def __init__(self, folder: Path, *, resume_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds

        self._folder = folder
        try:
            self._writer: SummaryWriter | None = SummaryWriter(
                folder, purge_step=resume_step + 1, flush_secs=FLUSH_SECONDS
            )
        except OSError as error:
            raise PilekitError(
                f"{self._not_written(error)}; set log.tensorboard = false, or name another --out"
            ) from error

    def write(self, metrics: StepMetrics) -> None:
        """Add a point for each figure of `numbers_of`; control characters in names are made visible."""
        with self._surviving():
            if self._writer is not None:
                for name, number in numbers_of(metrics):
                    self._writer.add_scalar(visible(name, LONGEST_TAG), number, metrics.step)

    def close(self) -> None:
        """Write what is still in memory."""
        with self._surviving():
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            logger.warning(
                "%s; nothing more is written for TensorBoard until the run is started again", self._not_written(error)
            )

    def _not_written(self, error: OSError) -> str:
        return f"{visible(str(self._folder))}: cannot be written: {visible(error.strerror or str(error), 200)}"

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
