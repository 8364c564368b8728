"""`StreamLoader`: a DataLoader over a PileStream that keeps the stream's state.

Workers read ahead, and what counts is what was handed out: each batch is recorded at the moment it is given to the
training loop. Every iteration starts new workers from what is recorded, as many as leave each lane to one of them.
"""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from pilekit.errors import PilekitError, visible
from pilekit.stream.batch.batch import Batch
from pilekit.stream.recorded_stream import RecordedStream
from pilekit.stream.sharded_twice import warn_of_lightning

logger = logging.getLogger(__name__)

_AHEAD_BYTES = 64 << 20
_BYTES_OF_TOKEN = 40
"""In a batch, with all of its columns."""
_PIPE_BYTES = 1 << 20


class StreamLoader:
    """Made by `stream.loader(...)`.

    num_workers              processes that make batches; 0: this one does
    prefetch_factor          batches that each worker makes ahead; by default what 64 MiB hold, from 2 to 128: a worker
                             that fills the windows of its lanes gives nothing for a moment, which others bridge
    pin_memory               whether batches come in page-locked memory, from which they go to a GPU faster
    multiprocessing_context  how workers are started, as DataLoader takes it

    Iterating gives the stream's batches without their `stream_state`, which is recorded. PilekitError if a worker dies,
    and for an error in a worker.
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
        if type(num_workers) is not int or num_workers < 0:
            raise PilekitError(f"num_workers is a whole number from 0 on, not {visible(repr(num_workers), 80)}")
        if prefetch_factor is not None and (type(prefetch_factor) is not int or prefetch_factor < 1):
            raise PilekitError(f"prefetch_factor is a whole number from 1 on, not {visible(repr(prefetch_factor), 80)}")
        methods = multiprocessing.get_all_start_methods()
        if isinstance(multiprocessing_context, str) and multiprocessing_context not in methods:
            raise PilekitError(
                f"multiprocessing_context is one of {', '.join(methods)}, not "
                f"{visible(repr(multiprocessing_context), 80)}"
            )
        self.stream = stream
        self.num_workers = num_workers
        self._options: dict[str, Any] = {"pin_memory": pin_memory and not stream.is_raw}
        if num_workers:
            if prefetch_factor is None:
                prefetch_factor = max(
                    2, min(128, _AHEAD_BYTES // (_BYTES_OF_TOKEN * stream.batch_size * stream.seq_len))
                )
            self._options |= {"prefetch_factor": prefetch_factor, "multiprocessing_context": multiprocessing_context}
        self._told = self._told_of_lightning = False

    def __iter__(self) -> Iterator[Batch]:
        """Resume from the record; one iterator of a stream at a time."""
        if not self._told_of_lightning:
            self._told_of_lightning = True
            warn_of_lightning()
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        stream = self.stream
        stream.begin()
        active = stream.share.workers(self.num_workers)
        if active < self.num_workers and not self._told:
            self._told = True
            logger.warning("%s", stream.few_workers(self.num_workers))
        loader: DataLoader[Batch] = DataLoader(
            _Batches(stream), batch_size=None, num_workers=active, collate_fn=_as_it_is, **self._options
        )
        batches = iter(loader)
        _widen_pipe(batches)
        try:
            yield from self._recorded(batches, active)
        finally:
            _end_workers(batches)

    def _recorded(self, batches: Iterator[Batch], workers: int) -> Iterator[Batch]:
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                self.stream.pass_ended()
                return
            except PilekitError as error:
                raise PilekitError(_last_line(str(error))) from error
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise PilekitError(
                    f"{visible(str(error).splitlines()[0], 200)}; if memory ran out, use fewer workers or lanes"
                ) from error
            except (ConnectionError, EOFError, FileNotFoundError) as error:
                if not workers or str(error).startswith("Caught "):  # the latter: raised inside a worker
                    raise
                raise PilekitError(
                    f"a DataLoader worker ended while it sent a batch ({visible(repr(error), 200)}); if memory "
                    "ran out, use fewer workers or lanes"
                ) from error
            self.stream.advance(batch)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The stream's state behind the last batch handed out."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """As `PileStream.load_state_dict`."""
        self.stream.load_state_dict(state, strict)


class _Batches(IterableDataset[Batch]):
    """The stream's batches for this loader's DataLoader, which no framework has prepared."""

    def __init__(self, stream: RecordedStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Batch]:
        return self._stream.batches()


def _widen_pipe(batches: object) -> None:
    """Let the pipe through which workers send hold several batches: by default a worker waits in the middle of each.

    With two workers on two cores, a tenth as many switches between processes and a tenth more tokens a second. As large
    as Linux lets everybody have; where that cannot be had, the pipe stays as it is.
    """
    queue = getattr(batches, "_worker_result_queue", None)
    if queue is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError, AttributeError):
            fcntl.fcntl(queue._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _end_workers(batches: object) -> None:
    """End the workers now. torch does when nothing refers to `batches` any more, which after an error is much later."""
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()


def _as_it_is(batch: Any) -> Any:
    """What torch would make of a batch is a copy, and of a document one without its state."""
    return batch


def _last_line(text: str) -> str:
    """What a worker's PilekitError says: DataLoader puts a traceback before it."""
    return text.rpartition("pilekit.errors.PilekitError: ")[2].strip()
