"""Refusing frameworks that would share a stream out among the ranks once more, or save its state wrongly.

Each rank's stream makes that rank's batches alone. A framework that prepares a DataLoader keeps every n-th batch of
each rank, or sends rank 0's batches to all: either loses data silently. The process shows which framework is in use;
nothing is imported here.
"""

from __future__ import annotations

import logging
import sys

from pilekit.errors import PilekitError

logger = logging.getLogger(__name__)


def refuse_second_sharding(world_size: int) -> None:
    """PilekitError with the remedy, where several ranks run under accelerate and this is not `stream.loader()`."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if world_size > 1 and getattr(state, "_shared_state", None):
        raise PilekitError(
            "accelerate would share this stream out among the ranks a second time: each rank's stream makes that "
            "rank's batches alone. Iterate stream.loader(num_workers=...), do not prepare() it, and move each batch "
            "with accelerate.utils.send_to_device(batch, accelerator.device); for transformers' Trainer, override "
            "get_train_dataloader(self) to return that loader, and give no train_dataset"
        )


def warn_of_lightning() -> None:
    """Warn that Lightning's Trainer saves a wrong state of a loader without length, where Lightning is imported."""
    if "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules:
        logger.warning(
            "Lightning's Trainer reads a batch ahead of stream.loader() and would save a state behind that batch: give "
            "fit() DataLoader(stream, batch_size=None, num_workers=...), call stream.advance(batch) in training_step, "
            "and save and load the stream's state in on_save_checkpoint and on_load_checkpoint"
        )
