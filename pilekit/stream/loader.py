"""`StreamLoader`: a DataLoader over a PileStream that keeps the stream's state.

Workers read ahead, but only batches that were handed out count: each batch is recorded when the training loop gets it.
Every iteration starts new workers from the record. It starts only as many workers as can work without sharing a lane.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from pilekit.artifacts.checked import checked
from pilekit.artifacts.settings import FromZero
from pilekit.display.wrong_names import NearestNames
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.stream.batch.batch import Batch
from pilekit.stream.batch.build_batches import Item
from pilekit.stream.iteration import Iteration

logger = message_logger(__name__)

_PREFETCH_BYTES = 64 << 20
_BYTES_OF_TOKEN = 40
"""For one token in a batch with all columns."""
_PIPE_BYTES = 1 << 20


class RecordedStream(Protocol):
    """What its loader needs of a `PileStream`."""

    @property
    def is_raw(self) -> bool:
        """Whether batches hold whole documents."""

    @property
    def seq_len(self) -> int:
        """The setting of the stream."""

    @property
    def _iteration(self) -> Iteration: ...

    def state_dict(self) -> dict[str, Any]:
        """The state after the last recorded batch."""

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Resume from a state."""


class StreamLoader(NearestNames):
    """The DataLoader that `stream.loader(...)` makes.

    num_workers              processes that make batches; 0: this process makes them
    prefetch_factor          batches that each worker makes ahead; by default as many as 64 MiB hold, from 2 to 128,
                             because a worker makes no batch while it fills the windows of its lanes
    pin_memory               whether batches are in page-locked memory, which a GPU copies faster
    multiprocessing_context  how workers are started; DataLoader's argument

    Iterating gives the stream's batches, records their `stream_state` and removes it from them. PilekitError if a
    worker dies or fails.
    """

    def __init__(
        self,
        stream: RecordedStream,
        num_workers: int = 0,
        *,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        multiprocessing_context: Any = None,
    ) -> None:
        checked(num_workers, FromZero, "num_workers")
        self.stream = stream
        self.num_workers = num_workers
        self._options: dict[str, Any] = {"pin_memory": pin_memory and not stream.is_raw}
        if num_workers:
            if prefetch_factor is None:
                per_batch = _BYTES_OF_TOKEN * stream._iteration.share.batch_size * stream.seq_len
                prefetch_factor = max(2, min(128, _PREFETCH_BYTES // per_batch))
            self._options |= {"prefetch_factor": prefetch_factor, "multiprocessing_context": multiprocessing_context}
        self._warned = False

    def __repr__(self) -> str:
        return f"StreamLoader({self.stream!r}, num_workers={self.num_workers})"

    def __iter__(self) -> Iterator[Batch]:
        """Resume from the record; one iterator of a stream at a time."""
        if not self._warned:
            self._warned = True
            _warn_of_lightning()
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        iteration = self.stream._iteration
        iteration.begin()
        batches = iter(
            DataLoader(
                _Batches(iteration),
                batch_size=None,
                num_workers=iteration.share.workers(self.num_workers),
                collate_fn=_as_it_is,
                **self._options,
            )
        )
        _widen_pipe(batches)
        try:
            for batch in _clear_errors(batches):
                iteration.advance(batch)
                yield batch
            iteration.end_pass()
        finally:
            # torch ends the workers when nothing refers to `batches` any more; after an error that is much later.
            if (end := getattr(batches, "_shutdown_workers", None)) is not None:
                end()

    def state_dict(self) -> dict[str, Any]:
        """The stream's state after the last batch handed out."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """As `PileStream.load_state_dict`."""
        self.stream.load_state_dict(state, strict)


class _Batches(IterableDataset[Item]):
    """The stream's batches for this loader's own DataLoader; frameworks never see that DataLoader."""

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration

    def __iter__(self) -> Iterator[Item]:
        return self._iteration.unrecorded_batches()


def _clear_errors(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches. If a worker fails or dies, one clear PilekitError."""
    try:
        yield from batches
    except PilekitError as error:  # DataLoader puts the worker's traceback before the message
        raise PilekitError(str(error).rpartition("pilekit.errors.PilekitError: ")[2].strip()) from error
    except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
        first = shortened(str(error).splitlines()[0] if str(error) else repr(error), 200)
        if first.startswith("Caught ") or (isinstance(error, RuntimeError) and "DataLoader worker" not in first):
            raise
        raise PilekitError(
            f"a DataLoader worker ended ({first}); if memory ran out, use fewer workers or lanes"
        ) from error


def _widen_pipe(batches: object) -> None:
    """Enlarge the workers' pipe to hold several batches: with the default size a worker waits in the middle of each.

    With two workers on two cores this makes a tenth as many process switches and a tenth more tokens a second. The size
    is the largest that Linux allows every user. If Linux refuses it, the pipe is not changed.
    """
    queue = getattr(batches, "_worker_result_queue", None)
    if queue is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError, AttributeError):
            fcntl.fcntl(queue._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _as_it_is(batch: Any) -> Any:
    """Collate nothing: torch's collation would copy a batch, and lose a document's state."""
    return batch


def refuse_second_sharding(world_size: int) -> None:
    """PilekitError with the remedy if accelerate would divide a stream of several ranks a second time.

    Each rank's stream makes only that rank's batches. A framework that prepares a DataLoader keeps every n-th batch of
    each rank, or sends rank 0's batches to all ranks, and so loses data silently.
    """
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if world_size > 1 and getattr(state, "_shared_state", None):
        raise PilekitError(
            "accelerate would share this stream out among the ranks a second time: each rank's stream makes that "
            "rank's batches alone. Iterate stream.loader(num_workers=...), do not prepare() it, and move each batch "
            "with accelerate.utils.send_to_device(batch, accelerator.device); for transformers' Trainer, override "
            "get_train_dataloader(self) to return that loader, and give no train_dataset"
        )


def _warn_of_lightning() -> None:
    """Warn that Lightning's Trainer saves a wrong state for a loader without a length."""
    if "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules:
        logger.warning(
            "Lightning's Trainer reads a batch ahead of stream.loader() and would save a state behind that batch: give "
            "fit() DataLoader(stream, batch_size=None, num_workers=...), call stream.advance(batch) in training_step, "
            "and save and load the stream's state in on_save_checkpoint and on_load_checkpoint"
        )
