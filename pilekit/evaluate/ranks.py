"""The ranks of an evaluation: each scores its own documents without the others, and then they meet.

Ranks may take hours, and some take longer than others, but a collective operation gives up after minutes. So a finished
rank records that in the store where the ranks found each other, and waits for the others. A thread of each rank writes
a sign of life there every second; a rank without a recent sign is gone. A rank that fails records that too. The others
check for failures between two forward passes, stop, and raise the message.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from pilekit.engine.ranks import Ranks, join
from pilekit.errors import PilekitError, ToldElsewhere

T = TypeVar("T")

BEAT_SECONDS = 1.0
LOST_SECONDS = 120.0
"""Seconds without a sign of life after which a rank is gone."""
REMEDY = "run the same command again: with --out, recorded documents are not scored again"

_calls = itertools.count()


def alone() -> Ranks:
    """The only rank of a job; no process group is made."""
    nobody = cast("Any", None)
    return Ranks(0, 1, 0, torch.device("cpu"), mesh=nobody, control=nobody, saving=nobody)


def ranks_of_job() -> Ranks:
    """This process among the ranks of its job."""
    return join() if dist.is_initialized() or os.environ.get("WORLD_SIZE", "1") != "1" else alone()


def apart(ranks: Ranks, work: Callable[[Callable[[], None]], T], lost_after: float = LOST_SECONDS) -> T:
    """`Ranks.on_all_ranks` for work that takes long, and takes longer on some ranks than on others.

    work         receives a function to call now and then, which raises the failure of another rank
    lost_after   seconds without a sign of life after which a rank is gone
    """
    if ranks.world_size == 1:
        return work(lambda: None)
    call = next(_calls)

    def checked() -> T:
        signs = _Signs(call, ranks, lost_after)
        try:
            value = work(signs.check)
            signs.wait_for_all()
            return value
        except BaseException as error:
            signs.fail(str(error) if isinstance(error, PilekitError) else f"{type(error).__name__} on another rank")
            raise
        finally:
            signs.ended.set()

    return ranks.on_all_ranks(checked)


class _Signs:
    """The entries of the ranks in the store: "failed", "done/<rank>" and "beat/<rank>"."""

    def __init__(self, call: int, ranks: Ranks, lost_after: float) -> None:
        self._store = PrefixStore(f"pilekit/evaluate/{call}", dist.distributed_c10d._get_default_store())
        self._ranks, self._lost_after, self._checked = ranks, lost_after, 0.0
        self.ended = threading.Event()
        threading.Thread(target=self._beat, name="pilekit-beat", daemon=True).start()

    def check(self) -> None:
        """Raise the failure of another rank; looks at most once a second."""
        if time.monotonic() - self._checked >= BEAT_SECONDS:
            self._checked = time.monotonic()
            if (failure := self._get("failed")) is not None:
                raise PilekitError(failure)

    def wait_for_all(self) -> None:
        """Return when all ranks have called this; raise an error if a rank has failed or is gone."""
        self._store.set(f"done/{self._ranks.rank}", "")
        for rank in range(self._ranks.world_size):
            beat, since = None, time.monotonic()
            while self._get(f"done/{rank}") is None:
                self.check()
                if (newest := self._get(f"beat/{rank}")) != beat:
                    beat, since = newest, time.monotonic()
                elif time.monotonic() - since > self._lost_after:
                    raise PilekitError(
                        f"rank {rank} is gone: no sign of life for {self._lost_after:g} seconds; look at its messages, "
                        f"and {REMEDY}"
                    )
                time.sleep(BEAT_SECONDS / 10)

    def fail(self, message: str) -> None:
        """Tell the others that this rank fails."""
        with suppress(RuntimeError):  # the store itself may be gone
            self._store.set("failed", message)

    def _beat(self) -> None:
        with suppress(RuntimeError):
            for beat in itertools.count():
                self._store.set(f"beat/{self._ranks.rank}", str(beat))
                if self.ended.wait(BEAT_SECONDS):
                    return

    def _get(self, key: str) -> str | None:
        try:
            return self._store.get(key).decode() if self._store.check([key]) else None
        except RuntimeError as error:  # the process that kept the store is gone
            raise ToldElsewhere(
                f"rank {self._ranks.rank}: the rank that keeps the store of all is gone; look at the messages of the "
                f"others, and {REMEDY}"
            ) from error
