"""Refusing to be dealt out a second time, or read ahead of the state, by a framework that means well.

Every rank's stream makes that rank's batches alone. A framework that prepares a DataLoader deals out what any iterable
dataset yields once more: it keeps every n-th batch of each rank, or hands rank 0's batches to all. Either loses data
silently. Such frameworks are found where they call: in the calls that lead to an iteration, or to `set_epoch`, which
they all make first, in the main process. Nothing of theirs is imported.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import FrameType

from pilekit.errors import PilekitError

_DEALERS = {
    "accelerate.data_loader": ("DataLoaderShard.", "DataLoaderDispatcher.", "IterableDatasetShard."),
    "transformers.trainer_pt_utils": ("IterableDatasetShard.",),
}
"""Where, and in which classes, the batches of a dataset are dealt out among ranks."""

_FETCHERS = ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers")


def refuse_second_sharding() -> None:
    """PilekitError with the remedy, if this was called on the way to an iteration that shares out a stream again."""
    dealer = trainer = False
    for frame in _frames():
        module = _module(frame)
        dealer = dealer or frame.f_code.co_qualname.startswith(_DEALERS.get(module, ("\0",)))
        trainer = trainer or module == "transformers.trainer"
    if dealer and trainer:
        raise PilekitError(
            "transformers' Trainer would share this stream out among the ranks a second time: each rank's stream makes "
            "that rank's batches alone. Give the Trainer no train_dataset, and override get_train_dataloader(self) to "
            "return stream.loader(num_workers=...)"
        )
    if dealer:
        raise PilekitError(
            "accelerate would share this stream out among the ranks a second time: each rank's stream makes that "
            "rank's batches alone. Do not prepare() its DataLoader: iterate stream.loader(num_workers=...), and move "
            "each batch with accelerate.utils.send_to_device(batch, accelerator.device)"
        )


def refuse_unsafe_lightning(ends: bool, world_size: int) -> None:
    """PilekitError with the remedy, if Lightning is about to train from a loader whose state it would save wrongly.

    ends   whether the loader has a length. Without one Lightning reads a batch ahead of what it trains on, and the
           state that it saves is behind that batch
    """
    if ends and world_size == 1:
        return
    for frame, caller in itertools.pairwise(_frames()):
        if (
            _module(frame) in _FETCHERS
            and frame.f_code.co_qualname == "_PrefetchDataFetcher.__iter__"
            and _module(caller).endswith((".fit_loop", ".training_epoch_loop"))
        ):
            break
    else:
        return
    reason = (
        "Lightning saves the loader's state of rank 0 alone"
        if ends
        else "Lightning reads a batch ahead of a loader without length, and would save a state behind that batch"
    )
    one = "" if world_size > 1 else "give the stream samples_per_epoch=, which is the loader's length; or "
    raise PilekitError(
        f"{reason}: {one}give fit() DataLoader(stream, batch_size=None, num_workers=...), call stream.advance(batch) "
        "in training_step, and save and load the stream's state in on_save_checkpoint and on_load_checkpoint"
    )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
