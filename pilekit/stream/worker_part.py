"""Which part of an iteration a DataLoader's worker makes, and how much of it it has made.

A worker's own state is of use to one who keeps the states of all workers and gives each back to its worker, as
torchdata's StatefulDataLoader does: the places of the worker's lanes after the batches that it made, and this. The
state counts batches as the iteration began; `made` of the worker's part are behind it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from pilekit.errors import PilekitError, visible


@dataclass(frozen=True)
class WorkerPart:
    """Batches first + worker, first + worker + workers, ... of an iteration, of which `made` are behind us."""

    worker: int
    workers: int
    made: int = 0

    def after_one(self) -> WorkerPart:
        """One batch later."""
        return replace(self, made=self.made + 1)

    def to_json(self) -> dict[str, int]:
        """What stands under "worker" in a worker's state."""
        return asdict(self)

    def resumed(self, loaded: object) -> WorkerPart:
        """This worker's part where the state loaded into it says; PilekitError if that is another worker's."""
        names = ("worker", "workers", "made")
        if not isinstance(loaded, Mapping) or any(type(loaded.get(name)) is not int for name in names):
            raise PilekitError(
                f'the stream\'s state is damaged: "worker" in it is {visible(repr(loaded), 80)}; give what '
                "state_dict() gave"
            )
        found = WorkerPart(*(loaded[name] for name in names))
        if (found.worker, found.workers) != (self.worker, self.workers) or found.made < 0:
            raise PilekitError(
                f"the state is that of worker {found.worker} of {found.workers} and was given to worker {self.worker} "
                f"of {self.workers}; use the num_workers it was taken with, or stream.loader(), whose state fits any"
            )
        return found


def refuse_worker_state(state: Mapping[str, Any]) -> None:
    """PilekitError for the state of a worker, where that of a stream is wanted."""
    if "worker" in state:
        raise PilekitError(
            "this is the state of one worker of a DataLoader, which knows only its own part; load the loader's state "
            "into the StatefulDataLoader that it was taken from, or use stream.loader() and its state"
        )


def work_in_background() -> None:
    """Have Linux take this process for one that computes all the time: it then interrupts nobody when it wakes.

    A worker has batches in stock, and who waits for one has not; without this the two take turns several times a batch.
    """
    with suppress(OSError, AttributeError):  # another system, or one that does not allow it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
