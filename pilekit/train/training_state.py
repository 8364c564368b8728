"""`TrainingState`: the state of a run between two steps, loaded before its first step and saved after some.

A checkpoint holds the weights and the optimizer (of the engine), the stream's place, and `Progress`. The stream's place
is recorded after each batch that was trained on, so the next step's batch begins there.

A step is launched before anybody knows how it ends. `launched` is ahead of `progress` until then, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from pilekit.errors import PilekitError, message_logger
from pilekit.stream.batch.batch import Batch
from pilekit.stream.pile_stream import PileStream
from pilekit.train.branches import origin_of
from pilekit.train.checkpoint.saving import Checkpoints
from pilekit.train.checkpoint.state_file import Damaged, Progress, verify
from pilekit.train.checkpoint.step_folders import find_checkpoint
from pilekit.train.config.sections import TrainConfig
from pilekit.train.log.document_log import DocumentLog, cut_back
from pilekit.train.model.shape import fingerprint
from pilekit.train.run_folder import RunFolder
from pilekit.train.start import WEIGHTS_ALONE, check_start, take_config
from pilekit.train.step.sharding import own_part
from pilekit.train.step.step_engine import StepEngine

logger = message_logger(__name__)


class TrainingState:
    """The state of `engine` and `stream`. All ranks make the same calls, `begin` first.

    is_object   whether the model was given as an object, whose weights a checkpoint replaces
    progress    the progress after the last step whose end is known
    launched    the progress after the last step
    saved       the step whose state was loaded or saved last
    """

    progress: Progress
    launched: Progress
    saved: int

    def __init__(self, engine: StepEngine, stream: PileStream, config: TrainConfig, *, is_object: bool) -> None:
        self._engine, self._stream, self._config, self._is_object = engine, stream, config, is_object
        self._model = fingerprint(engine.lm.model)
        self._has_begun = False

    def begin(self, run: RunFolder, checkpoints: Checkpoints) -> None:
        """Load the newest of `checkpoints`, or the one that the run branches from; without any, start at step 0.

        Then take the config as the run's. Raises PilekitError if the checkpoint does not fit the config.
        """
        self._checkpoints = checkpoints
        config, ranks = self._config, self._engine.ranks
        folder = checkpoints.newest()
        ranks.on_rank0(lambda: check_start(run, config))
        origin = None if folder is not None else ranks.on_rank0(lambda: origin_of(run, config))
        begin = folder if origin is None else origin
        if begin is not None:
            self._has_begun = True
            self._load(run, begin, origin)
        elif self._has_begun:
            raise ranks.error("this Trainer has trained already, and nothing was saved; make a new one")
        else:
            ranks.on_rank0(lambda: take_config(run, config, None, None, self._stream.altered))
            self._has_begun = True
            self.progress = Progress(0, 0, self._stream.state_dict(), torch.get_num_threads(), self._model)
        self.launched = self.progress
        self.saved = self.progress.step
        ranks.on_rank0(lambda: cut_back(run.documents, self.saved))
        self._documents = DocumentLog(run.documents, self._stream) if config.log.documents else None
        if origin is not None:
            self.save()  # so that the branch no longer needs a checkpoint that the other run may remove

    def _load(self, run: RunFolder, folder: Path, origin: Path | None) -> None:
        engine, ranks, name = self._engine, self._engine.ranks, run.path
        progress = engine.load(partial(self._checkpoints.load, folder))
        if self._is_object and ranks.is_first:
            logger.warning("%s: resumes with the weights of %s, not those of the model object", name, folder.name)
        ranks.on_all_ranks(lambda: load_stream(self._stream, progress.stream, run, origin))
        if progress.model != self._model:  # after the stream, which knows whether another token caused it
            raise ranks.error(
                f"{name}: {origin or 'its checkpoint'} is of a model of another configuration; put back the "
                "config.json that it started with, or its model object"
                + (", or name another folder with --out" if origin is None else f"; {WEIGHTS_ALONE}")
            )
        if engine.loss_scale is not None and progress.loss_scale is not None:
            engine.loss_scale.load_state_dict(progress.loss_scale)
        if progress.step < self._config.steps or origin is not None:  # else nothing is trained with this config
            ranks.on_rank0(lambda: take_config(run, self._config, progress.step, origin, self._stream.altered))
        if progress.world_size == ranks.world_size and progress.threads != torch.get_num_threads():
            if ranks.is_first:
                logger.warning("computing with %d threads, as when the checkpoint was made", progress.threads)
            torch.set_num_threads(progress.threads)
        self.progress = replace(progress, stream=self._stream.state_dict())

    def launch(self, tokens: int) -> None:
        """Record that a step on `tokens` tokens of all ranks is under way, before the next batch is read."""
        self.launched = replace(
            self.progress,
            step=self.progress.step + 1,
            tokens=self.progress.tokens + tokens,
            stream=self._stream.state_dict(),
        )

    def launched_documents(self) -> dict[str, int]:
        """The documents of each subset that this rank has begun since the run did, that step included."""
        return {name: documents for name, (documents, _) in self.launched.stream["counts"]["subsets"].items()}

    def advance(self, batch: Batch, *, skipped: bool) -> None:
        """Record the end of that step on this rank's `batch`; `skipped` if it changed no weight."""
        self.progress = self.launched = replace(self.launched, skipped=self.progress.skipped + skipped)
        if self._documents is not None:
            self._documents.add(self.progress.step, batch)

    def cancel(self) -> None:
        """Record that the step failed and changed nothing, so it has never been."""
        self.launched = self.progress

    def save(self) -> None:
        """Begin to save a checkpoint. Raises PilekitError if the weights are no longer numbers."""
        ranks, scale = self._engine.ranks, self._engine.loss_scale
        model, optimizer = self._engine.state()
        if ranks.any(not all(bool(own_part(parameter).isfinite().all()) for parameter in model.parameters())):
            raise ranks.error(
                f"step {self.progress.step}: the weights are no longer numbers and are not saved; lower optimizer.lr "
                "or lengthen schedule.warmup, and run again"
            )
        if self._documents is not None:
            self._documents.write()
        progress = replace(
            self.progress,
            stream=PileStream.merge_state_dicts(ranks.gather(self.progress.stream)),
            threads=torch.get_num_threads(),
            loss_scale=None if scale is None else scale.state_dict(),
            world_size=ranks.world_size,
        )
        self._checkpoints.save(model, optimizer, progress, msgspec.to_builtins(self._config))
        self.saved = self.progress.step

    def save_before_raising(self) -> None:
        """Save the steps so far because a step has failed, and wait. An error of its own is dropped.

        Nothing is saved if nobody knows what weights the last step has left.
        """
        with suppress(PilekitError):
            if self.progress.step > self.saved and self.launched is self.progress:
                self.save()
            self._checkpoints.finish()


def planned_start(run: RunFolder, config: TrainConfig, stream: PileStream) -> tuple[int, Path | None] | None:
    """(the step after which `run` would start, the checkpoint of another run that it branches from), if not at step 0.

    `check_start` has passed the config. The stream, of this process alone, gets the place of the start. Raises
    PilekitError if the checkpoint is damaged, or if its data is not that of the stream.
    """
    folder, _ = find_checkpoint(run.checkpoints)
    origin = origin_of(run, config)
    begin = folder if origin is None else origin
    if begin is None:
        return None
    try:
        progress = verify(begin, hashes=origin is not None).progress  # the other has just been verified
    except Damaged as damage:
        raise PilekitError(f"{begin}: is not a good checkpoint: {damage}; give another") from damage
    load_stream(stream, progress.stream, run, origin)
    return progress.step, origin


def load_stream(stream: PileStream, state: Mapping[str, Any], run: RunFolder, origin: Path | None) -> None:
    """Load the stream's state of a checkpoint of `run`, or of the one that it branches from.

    Raises PilekitError, with the remedy, if it does not fit the stream.
    """
    try:
        stream.load_state_dict(state)
    except PilekitError as error:
        if origin is None:
            raise PilekitError(
                f"{run.path}: cannot resume with other data ({error}); give [data] as it was, or name another folder "
                "with --out"
            ) from error
        raise PilekitError(
            f"{run.path}: cannot branch from {origin} with other data ({error}); give the [data] of its run, of which "
            f"entries of [[data.schedule]] for later steps may differ; {WEIGHTS_ALONE}"
        ) from error
