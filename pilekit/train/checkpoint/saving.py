"""`Checkpoints`: saves the state between two steps while training continues, and finds it again.

A save runs in a thread. The thread first copies this rank's tensors into memory that it keeps from save to save. Only
the optimizer's step changes these tensors, so the next forward and backward run meanwhile, and `before_update` waits
until the copy is complete. Then all ranks write their copies and hash the files. Rank 0 writes the manifest, renames
the folder into place and removes older checkpoints: a folder under its final name is complete.

The threads of all ranks talk over a process group of their own, and one save ends before the next begins. They never
touch a DTensor: the training thread plans each rank's writes, and the checkpoint thread sees plain tensors.

Torch's random state is not saved, because every step seeds torch from (train.seed, step).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pilekit.artifacts.atomic_write import PARTIAL, flush
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.train.checkpoint.state_file import Damaged, Progress, own_sums, verify, write_state
from pilekit.train.checkpoint.step_folders import find_checkpoint, prune, put_in_place, remove, remove_killed_saves
from pilekit.train.checkpoint.tensors import TensorSave, load_tensors, state_tensors, write_tensors
from pilekit.train.config.sections import CheckpointConfig
from pilekit.workers.ranks import Ranks, lost_rank

logger = message_logger(__name__)

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one run. All ranks call every method together.

    folder     RUN/checkpoints, which need not exist
    settings   how many to keep, and whether `save` returns before the checkpoint is written
    saved      the folders of the steps that have been loaded or saved, in order
    """

    def __init__(self, folder: Path, ranks: Ranks, settings: CheckpointConfig) -> None:
        self.saved: dict[int, Path] = {}
        self._folder, self._ranks, self._settings = folder, ranks, settings
        self._verified: Path | None = None
        self._damaged: list[Path] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: tuple[_Save, Future[None]] | None = None
        self._copies: dict[str, Tensor] = {}
        self._unwritten: Unwritten | None = None

    def newest(self) -> Path | None:
        """The newest checkpoint that verifies, or None if there is no checkpoint.

        Removes the leftovers of a killed save. One warning names damaged checkpoints that are newer. Raises
        PilekitError if there are checkpoints and none is good.
        """
        self._wait()
        self._ranks.on_rank0(lambda: remove_killed_saves(self._folder))
        newest, damaged = find_checkpoint(self._folder, self._ranks)
        if newest is not None and damaged and self._ranks.is_first:
            names = "; ".join(f"{folder} is damaged ({reason})" for folder, reason in damaged.items())
            logger.warning("%s; resuming from %s, and the next save removes what is damaged", names, newest.name)
        self._damaged, self._verified = list(damaged), newest
        return newest

    def load(self, folder: Path, model: nn.Module, optimizer: Optimizer) -> Progress:
        """Load the state in `folder`, a `step-N` of this run or another, into model and optimizer.

        The optimizer, whose groups have `param_names`, keeps its own learning rate and groups. Raises
        PilekitError, with nothing changed, if the folder is no good checkpoint or its parameters do not fit.
        """
        self._wait()
        try:
            state = verify(folder, self._ranks, hashes=folder != self._verified)
        except Damaged as damage:
            raise self._ranks.error(
                f"{folder}: is not a good checkpoint: {damage}; name one of the folders step-N in the "
                "checkpoints of a run"
            ) from damage
        load_tensors(folder, model, optimizer, self._ranks)
        self.saved = {state.progress.step: folder}
        return state.progress

    def before(self, step: int) -> Path | None:
        """The newest checkpoint from before step `step` (from 1) that was saved or loaded and still exists."""
        steps = [number for number, folder in self.saved.items() if number < step and folder.is_dir()]
        return self.saved[max(steps)] if steps else None

    def save(self, model: nn.Module, optimizer: Optimizer, progress: Progress, config: Mapping[str, Any]) -> None:
        """Begin to save the state as `step-N`, after the previous save has ended. If not `asynchronous`, wait for it.

        Parameters and optimizer state must not change until `before_update` returns. A checkpoint that cannot be
        written (a full disk) is a warning. The earlier checkpoints are kept.
        """
        self._wait()
        self._verified = None
        save = _Save(progress, dict(config), TensorSave(state_tensors(model, optimizer, self._ranks), self._ranks))
        cuda = self._ranks.device.type == "cuda"
        if self._settings.asynchronous:
            for key in save.tensors.values.keys() & {f"model.{name}" for name, _ in model.named_buffers()}:
                save.tensors.values[key] = save.tensors.values[key].clone()  # a forward may change a buffer
            save.copy_after = torch.cuda.current_stream(self._ranks.device).record_event() if cuda else None
        else:
            save.copied.set()
        self._running = save, self._thread.submit(self._write, save)
        if not self._settings.asynchronous:
            self._wait()

    def before_update(self) -> None:
        """Wait until the running save has copied the state. Call this before each step of the optimizer."""
        if self._running is not None:
            self._running[0].copied.wait()

    def poll(self) -> None:
        """If the running save has ended, take its result: warn if it could not be written, else raise its error."""
        if self._running is not None and self._running[1].done():
            self._wait()

    def finish(self) -> None:
        """Wait for the running save. Raises PilekitError if the last save could not be written."""
        self._wait(warn=False)
        if self._unwritten is not None:
            raise self._ranks.error(str(self._unwritten)) from self._unwritten

    def close(self) -> None:
        """Wait until the thread has finished writing, however training ended."""
        self._thread.shutdown()

    def _wait(self, *, warn: bool = True) -> None:
        if self._running is None:
            return
        (save, result), self._running = self._running, None
        self._unwritten = None
        try:
            result.result()
        except Unwritten as unwritten:
            self._unwritten = unwritten
            if warn and self._ranks.is_first:
                logger.warning("%s; training continues, and earlier checkpoints are kept", unwritten.reason)
        else:
            step = save.progress.step
            self.saved[step] = self._folder / f"step-{step}"

    def _write(self, save: _Save) -> None:
        """In the thread: copy and write the tensors, write the manifest, and put the folder in place."""
        ranks = replace(self._ranks, control=self._ranks.saving)  # the main thread uses the other group
        final = self._folder / f"step-{save.progress.step}"
        partial = final.with_name(final.name + PARTIAL)
        if ranks.device.type == "cuda":
            torch.cuda.set_device(ranks.device)

        def prepare() -> None:
            try:
                if self._settings.asynchronous:
                    copies = _copy_to_cpu(save.tensors.values, self._copies, save.copy_after, ranks.device)
                    save.tensors.values = self._copies = copies
            finally:
                save.copied.set()
            if ranks.is_first:
                self._folder.mkdir(parents=True, exist_ok=True)
                remove_killed_saves(self._folder)
                partial.mkdir()

        def seal() -> None:
            if ranks.is_first:
                files = {name: file_sum for rank_sums in sums for name, file_sum in rank_sums.items()}
                write_state(partial, save.progress, save.config, files)
                flush(partial)
                put_in_place(partial, final)
                prune(self._folder, save.progress.step, self._settings.keep_last, self._damaged)
                self._damaged = []

        try:
            _on_all_ranks(prepare, ranks)
            write_tensors(partial, save.tensors, ranks)
            sums = _on_all_ranks(lambda: own_sums(partial, ranks.rank), ranks)
            _on_all_ranks(seal, ranks)
        except BaseException as error:
            if ranks.is_first and os.path.lexists(partial):
                remove(partial)
            if isinstance(error, OSError):
                why = shortened(error.strerror or str(error), 200)
                raise Unwritten(f"{final}: the checkpoint cannot be written: {why}") from error
            raise (lost_rank(error, ranks) or error) from error.__cause__


def _on_all_ranks(work: Callable[[], T], ranks: Ranks) -> list[T]:
    """The results of all ranks. If any rank fails, all raise; OSError if a file could not be written."""

    def attempt() -> T | OSError:
        try:
            return work()
        except OSError as error:
            return OSError(error.errno, error.strerror)  # without parts that cannot be pickled

    results = ranks.gather(ranks.on_all_ranks(attempt))
    for result in results:
        if isinstance(result, OSError):
            raise result
    return results  # type: ignore[return-value]


class Unwritten(PilekitError):
    """A checkpoint could not be written. `reason` is the message without its remedy."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; earlier checkpoints are kept: make room and run the same command again")


@dataclass(slots=True, eq=False)
class _Save:
    """One save.

    tensors      the tensors that this rank writes
    copied       set when training may change the state again
    copy_after   the event in a GPU's work after which the copy may begin
    """

    progress: Progress
    config: dict[str, Any]
    tensors: TensorSave
    copied: Event = field(default_factory=Event)
    copy_after: torch.cuda.Event | None = None


def _copy_to_cpu(
    values: Mapping[str, Tensor], old: Mapping[str, Tensor], after: torch.cuda.Event | None, device: torch.device
) -> dict[str, Tensor]:
    """Copies of the values on the CPU, written over the `old` copies where shape and type are the same."""
    copies = {}
    for key, value in values.items():
        copy = old.get(key)
        if copy is None or (copy.shape, copy.dtype) != (value.shape, value.dtype):
            copy = torch.empty_like(value, device="cpu", pin_memory=after is not None)
        copies[key] = copy
    with torch.no_grad():
        if after is None:
            for key, value in values.items():
                copies[key].copy_(value)
        else:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_event(after)
            with torch.cuda.stream(stream):
                for key, value in values.items():
                    copies[key].copy_(value, non_blocking=True)
            stream.synchronize()
    return copies
