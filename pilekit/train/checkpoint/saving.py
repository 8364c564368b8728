"""`Checkpoints`: the state between two steps, saved beside training, whole or not there, and found again.

A save goes on in a thread while training does. First it copies what this rank has to write into memory that is kept
from save to save; since nothing but the optimizer's step changes it, the next step's forward and backward run
meanwhile, and `before_update` waits for what is left to copy. Then all ranks write their copies, hash what they wrote,
and rank 0 seals the checkpoint with `state.json`, puts it in place and removes older ones: what is under its final name
is whole. All that the threads tell each other goes over a process group of their own, in which nothing else speaks,
and one save ends before the next begins.

Torch's random state is not part of a checkpoint, because every step seeds torch from (train.seed, step).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from pilekit.engine.ranks import Ranks, lost_rank
from pilekit.errors import PilekitError, visible
from pilekit.train.checkpoint.files import Damaged, FileSum, Progress, own_sums, verify_together, write_state
from pilekit.train.checkpoint.folders import (
    PARTIAL,
    find_checkpoint,
    flush,
    point_to,
    prune,
    put_in_place,
    remove,
    settle,
    steps_in,
)
from pilekit.train.checkpoint.tensors import load_tensors, state_tensors, write_tensors
from pilekit.train.step.sharding import own_part

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one run, kept by all its ranks; every method is to be called by all of them, in step.

    folder           RUN/checkpoints, which need not exist
    latest           RUN/latest, a text file that names the newest
    keep_last        how many are kept, at least 1
    asynchronous     whether `save` returns while it is being written

    blocked_seconds  how long training has waited for its checkpoints so far
    saved            the steps that have been saved, in order
    """

    def __init__(self, folder: Path, latest: Path, ranks: Ranks, *, keep_last: int, asynchronous: bool) -> None:
        if keep_last < 1:
            raise PilekitError(f"keep_last is {keep_last}, and at least the newest checkpoint must be kept; give 1")
        self.blocked_seconds = 0.0
        self.saved: list[int] = []
        self._loaded: dict[int, Path] = {}
        self._folder, self._latest, self._ranks = folder, latest, ranks
        self._keep_last, self._asynchronous = keep_last, asynchronous
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._copies: dict[str, Tensor] = {}
        self._under_way: tuple[_Save, Future[None]] | None = None
        self._unwritten: Unwritten | None = None
        self._verified: Path | None = None
        self._damaged: list[Path] = []

    def newest(self) -> Path | None:
        """The newest checkpoint that verifies, whatever `latest` says; None if there has been none.

        Settles what a killed process left. Damaged checkpoints that are newer are named in one warning and passed over.
        PilekitError if there are checkpoints and none is good.
        """
        self._wait()
        ranks = self._ranks

        def tidy() -> list[int]:
            try:
                settle(self._folder)
            except OSError as error:
                raise PilekitError(f"{visible(str(self._folder))}: cannot be written: {error.strerror}") from error
            return steps_in(self._folder)

        there = ranks.on_rank0(tidy)
        found, damaged = find_checkpoint(self._folder, lambda folder: verify_together(folder, ranks), there)
        if found is not None:

            def take() -> None:
                told = "; ".join(f"{visible(str(folder))} is damaged ({reason})" for folder, reason in damaged.items())
                if told:
                    logger.warning("%s; resuming from %s, and the next save removes what is damaged", told, found.name)
                point_to(self._latest, found)

            ranks.on_rank0(take)
        self._damaged = list(damaged)
        self._verified = found
        return found

    def load(self, folder: Path, model: nn.Module, optimizer: Optimizer) -> Progress:
        """Bring model and optimizer into the state saved in `folder`, a `step-N` of this run or another; its progress.

        The optimizer, an AdamW whose groups have `param_names`, keeps its own learning rate and groups. PilekitError if
        the folder is no whole checkpoint, and names the parameters that do not fit; nothing is changed then.
        """
        self._wait()
        ranks = self._ranks
        try:
            state = verify_together(folder, ranks, hashes=folder != self._verified)
        except Damaged as damage:
            raise PilekitError(
                f"{visible(str(folder))}: is not a good checkpoint: {damage}; name one of the folders step-N in the "
                "checkpoints of a run"
            ) from damage
        load_tensors(folder, model, optimizer, ranks)
        self._loaded = {state.progress.step: folder}
        return state.progress

    def before(self, step: int) -> Path | None:
        """The newest checkpoint from before step `step`, counted from 1, that was saved or loaded and is still kept."""
        known = self._loaded | {saved: self._folder / f"step-{saved}" for saved in self.saved}
        return next(
            (known[there] for there in sorted(known, reverse=True) if there < step and known[there].is_dir()), None
        )

    def save(self, model: nn.Module, optimizer: Optimizer, progress: Progress, config: Mapping[str, Any]) -> None:
        """Begin to save the state as `step-N`, after the save before has ended; if not `asynchronous`, save it.

        Until `before_update` returns, nothing may change the parameters and the optimizer's state. PilekitError where a
        synchronous save cannot be written, a full disk included: the checkpoints there were are as they were.
        """
        with self._blocking():
            self._wait()
            self._verified = None
            save = _Save(progress, dict(config), state_tensors(model, optimizer, self._ranks))
            values = {key: own_part(tensor) for key, tensor in save.tensors.items()}
            if not self._asynchronous:
                save.copied.set()
                self._end(save, self._thread.submit(self._write, save, values), warn=False)
                if self._unwritten is not None:
                    raise self._unwritten
                return
            # a forward may change these
            values |= {
                key: values[key].clone() for name, _ in model.named_buffers() if (key := f"model.{name}") in values
            }
            self._under_way = save, self._thread.submit(self._copy_and_write, save, values, _now(self._ranks.device))

    def before_update(self) -> None:
        """Return once the save under way has its copy of the state: to be called before each step of the optimizer."""
        if self._under_way is not None and not self._under_way[0].copied.is_set():
            with self._blocking():
                self._under_way[0].copied.wait()

    def poll(self) -> None:
        """Look how the save under way has ended, if it has: a warning where it could not be written.

        Anything else that went wrong is raised.
        """
        if self._under_way is not None and self._under_way[1].done():
            self._wait()

    def finish(self) -> None:
        """Wait for the save under way. PilekitError if the last save that was begun could not be written."""
        with self._blocking():
            self._wait(warn=False)
        if self._unwritten is not None:
            raise self._unwritten

    def close(self) -> None:
        """Wait until nothing is written any more, however training ended: who trains on there is to be alone."""
        self._thread.shutdown()

    def _wait(self, *, warn: bool = True) -> None:
        if self._under_way is not None:
            (save, outcome), self._under_way = self._under_way, None
            self._end(save, outcome, warn=warn)

    def _end(self, save: _Save, outcome: Future[None], *, warn: bool) -> None:
        """Take down how a save ended."""
        try:
            outcome.result()
        except Unwritten as unwritten:
            self._unwritten = unwritten
            if warn and self._ranks.is_first:
                logger.warning("%s; training goes on, and earlier checkpoints are as they were", unwritten.what)
        else:
            self._unwritten = None
            self.saved.append(save.progress.step)

    @contextmanager
    def _blocking(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.blocked_seconds += time.perf_counter() - started

    def _copy_and_write(self, save: _Save, values: Mapping[str, Tensor], moment: torch.cuda.Event | None) -> None:
        """In the thread: the whole save."""
        failed: Exception | None = None
        try:
            self._copies = _copied(values, self._copies, moment, self._ranks.device)
        except Exception as error:
            failed = error
        finally:
            save.copied.set()
        self._write(save, self._copies, failed)

    def _write(self, save: _Save, values: Mapping[str, Tensor], failed: Exception | None = None) -> None:
        """In the thread: write the values on all ranks, seal them and put them in place; `failed` is told to all."""
        final = self._folder / f"step-{save.progress.step}"
        partial = final.with_name(final.name + PARTIAL)

        def prepare() -> None:
            if failed is not None:
                raise failed
            if self._ranks.is_first:
                self._folder.mkdir(parents=True, exist_ok=True)
                settle(self._folder)
                partial.mkdir()

        def seal(sums: list[dict[str, FileSum]]) -> None:
            if self._ranks.is_first:
                write_state(partial, save.progress, save.config, {name: s for own in sums for name, s in own.items()})
                flush(partial)
                put_in_place(partial, final)
                point_to(self._latest, final)
                prune(self._folder, save.progress.step, self._keep_last, self._damaged)
                self._damaged = []

        if self._ranks.device.type == "cuda":
            torch.cuda.set_device(self._ranks.device)
        try:
            try:
                self._everywhere(prepare)
                write_tensors(partial, save.tensors, values, self._ranks)
                sums = self._everywhere(lambda: own_sums(partial, self._ranks.rank))
                self._everywhere(lambda: seal(sums))
            except BaseException:
                if self._ranks.is_first and os.path.lexists(partial):
                    remove(partial)
                raise
        except OSError as error:
            why = visible(error.strerror or str(error), 200)
            raise Unwritten(f"{visible(str(final))}: the checkpoint cannot be written: {why}") from error
        except PilekitError as error:
            raise Unwritten(str(error)) from error
        except RuntimeError as error:
            if lost := lost_rank(error, self._ranks):
                raise lost from error
            raise

    def _everywhere(self, work: Callable[[], T]) -> list[T]:
        """In the thread: what `work` returns on each rank; if it raises on any, all raise the lowest rank's error."""
        if self._ranks.world_size == 1:
            return [work()]
        mine: T | BaseException
        try:
            mine = work()
        except OSError as error:
            mine = OSError(error.errno, error.strerror)  # without what may not be pickled
        except PilekitError as error:
            mine = error
        except BaseException as error:
            logger.exception("a checkpoint could not be saved")
            mine = RuntimeError(f"rank {self._ranks.rank}: {type(error).__name__}: {error}")
        told: list[Any] = [None] * self._ranks.world_size
        dist.all_gather_object(told, mine, group=self._ranks.saving)
        for value in told:
            if isinstance(value, BaseException):
                raise value
        return told


class Unwritten(PilekitError):
    """A checkpoint that could not be written; `what` tells it without a remedy."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what}; earlier checkpoints are as they were: make room (or give leave to write) and run the same "
            "command again"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Save:
    """One save: what for, what of, and whether training may change the state again."""

    progress: Progress
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    copied: Event = field(default_factory=Event)


def _now(device: torch.device) -> torch.cuda.Event | None:
    """The moment in a GPU's work at which the state is what it should be in the checkpoint."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _copied(
    values: Mapping[str, Tensor], copies: Mapping[str, Tensor], moment: torch.cuda.Event | None, device: torch.device
) -> dict[str, Tensor]:
    """Copies of the values on the CPU, written over those of the save before where they fit."""
    made = {}
    for key, value in values.items():
        copy = copies.get(key)
        if copy is None or (copy.shape, copy.dtype) != (value.shape, value.dtype):
            copy = torch.empty_like(value, device="cpu", pin_memory=moment is not None)
        made[key] = copy
    with torch.no_grad():
        if moment is None:
            for key, value in values.items():
                made[key].copy_(value)
        else:
            beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            beside.wait_event(moment)
            with torch.cuda.stream(beside):
                for key, value in values.items():
                    made[key].copy_(value, non_blocking=True)
            beside.synchronize()
    return made
