"""The figures of metrics.jsonl for TensorBoard: the same numbers, under the same names, at the same steps.

TensorBoard is an extra of its own and is looked for before anything else is done. metrics.jsonl stays what a run is
resumed and judged by. A run that goes on after step N says so, and TensorBoard then shows nothing that an earlier
start had written of later steps.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import TracebackType

from pilekit.errors import PilekitError, visible
from pilekit.train.log.metrics import StepMetrics, numbers_of

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 10
"""So much of the figures a killed run may lose; it writes them again when it goes on."""
LONGEST_TAG = 120


def check_tensorboard() -> None:
    """PilekitError where the package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise PilekitError(
            "log.tensorboard = true: the package tensorboard is not installed; pip install 'pilekit[tensorboard]', or "
            "set log.tensorboard = false (metrics.jsonl has the same figures)"
        )


class TensorBoardLog:
    """Appends to the event files of a folder, which is made if missing; a context manager.

    resume_step   the step that training goes on from: what earlier files have of later steps is no longer shown

    PilekitError where the package is missing or the folder cannot be made. A later failure to write ends the log with a
    warning, and not the training.
    """

    def __init__(self, folder: Path, *, resume_step: int) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # seconds, that others need not pay

        self._folder = folder
        try:
            self._writer: SummaryWriter | None = SummaryWriter(
                folder, purge_step=resume_step + 1, flush_secs=FLUSH_SECONDS
            )
        except OSError as error:
            raise PilekitError(
                f"{visible(str(folder))}: cannot be written: {_why(error)}; set log.tensorboard = false, or name "
                "another folder with --out"
            ) from error

    def write(self, metrics: StepMetrics) -> None:
        """A point of each figure; names are those of `numbers_of`, with control characters made visible."""
        if self._writer is not None:
            try:
                for name, number in numbers_of(metrics):
                    self._writer.add_scalar(visible(name, LONGEST_TAG), number, metrics.step)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Write what is still held."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
            self._writer = None

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        logger.warning(
            "%s: cannot be written: %s; nothing more is written for TensorBoard until the run is started again, "
            "metrics.jsonl has the same figures",
            visible(str(self._folder)),
            _why(error),
        )


def _why(error: OSError) -> str:
    return visible(error.strerror or str(error), 200)
