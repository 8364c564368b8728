"""The ranks of an evaluation: each scores its documents alone, then waits for the others.

Ranks may take hours, and some take longer than others, but a collective operation times out after minutes. So the ranks
meet in a process group whose timeout is a day. It notices a killed rank, because the connection breaks. A failing rank
writes its message into the rendezvous store. The others check the store between forward passes, stop, and raise the
message.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from pilekit.errors import PilekitError
from pilekit.workers.ranks import Ranks, join, lost_rank

PATIENCE = timedelta(days=1)
LOOK_SECONDS = 1.0

_calls = itertools.count()


def single_rank() -> Ranks:
    """The only rank of a job; no process group is made."""
    nobody = cast("Any", None)
    return Ranks(0, 1, 0, torch.device("cpu"), mesh=nobody, control=nobody, saving=nobody)


def ranks_of_job() -> Ranks:
    """This process as a rank of its job."""
    return join() if dist.is_initialized() or os.environ.get("WORLD_SIZE", "1") != "1" else single_rank()


@contextmanager
def ending_together(ranks: Ranks) -> Iterator[Callable[[], None]]:
    """In the block each rank works for as long as it takes. The block ends on all ranks at once, like `on_all_ranks`.

    Yields a function to call now and then, which raises another rank's failure.
    """
    if ranks.world_size == 1:
        yield lambda: None
        return
    store = PrefixStore(f"pilekit/evaluate/{next(_calls)}", dist.distributed_c10d._get_default_store())
    patient = replace(ranks, control=dist.new_group(backend="gloo", timeout=PATIENCE))
    looked = 0.0

    def check_others() -> None:
        nonlocal looked
        if time.monotonic() - looked < LOOK_SECONDS:
            return
        looked = time.monotonic()
        try:
            failure = store.get("failed").decode() if store.check(["failed"]) else None
        except RuntimeError as error:  # the process that kept the store is gone
            raise lost_rank(error, ranks) or error from error
        if failure is not None:
            raise PilekitError(failure)

    own_error: BaseException | None = None
    try:
        yield check_others
    except BaseException as error:
        own_error = error
        message = str(error) if isinstance(error, PilekitError) else f"{type(error).__name__} on another rank"
        with suppress(RuntimeError):  # the store itself may be gone
            store.set("failed", message)

    def end() -> None:
        if own_error is not None:
            raise own_error

    patient.on_all_ranks(end)
