"""The ranks of an evaluation: each scores its own documents, asks the others for nothing, and then they meet.

They may take hours, and not equally long; a collective operation would give up waiting. So a rank that is done says so
in the store where the ranks found each other, and waits there until all are. While it works and while it waits a thread
of its own leaves a sign of life there every second: a rank that has given none for a while is gone. One that fails says
that too, and the others, who look for it between two forward passes, stop and raise what it raised.
"""

from __future__ import annotations

import os
import secrets
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
"""How long a rank may give no sign of life."""


def ranks_of_job() -> Ranks:
    """The ranks that this process is one of; where it is alone, no process group is made."""
    if dist.is_initialized() or os.environ.get("WORLD_SIZE", "1") != "1":
        return join()
    nobody = cast("Any", None)
    return Ranks(0, 1, 0, torch.device("cpu"), mesh=nobody, control=nobody, saving=nobody)


def apart(ranks: Ranks, work: Callable[[Callable[[], None]], T], lost_after: float = LOST_SECONDS) -> T:
    """`Ranks.on_all_ranks` for work that takes long, and longer on some ranks than on others.

    work         is given a function to call now and then, which raises what another rank has failed with
    lost_after   seconds without a sign of life after which a rank that is waited for is gone
    """
    if ranks.world_size == 1:
        return work(lambda: None)
    name = ranks.on_rank0(lambda: secrets.token_hex(8))  # one for each call

    def checked() -> T:
        signs = _Signs(name, ranks, lost_after)
        try:
            value = work(signs.check)
            signs.wait_for_all()
            return value
        except BaseException as error:
            signs.tell(str(error) if isinstance(error, PilekitError) else f"{type(error).__name__} on another rank")
            raise
        finally:
            signs.end()

    return ranks.on_all_ranks(checked)


class _Signs:
    """What the ranks leave in the store: "failed", "done/<rank>" and "beat/<rank>"."""

    def __init__(self, name: str, ranks: Ranks, lost_after: float) -> None:
        store = dist.distributed_c10d._get_default_store()
        self._store = PrefixStore(f"pilekit/{name}", store)
        self._ranks, self._lost_after, self._checked = ranks, lost_after, 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="pilekit-beat", daemon=True).start()

    def check(self) -> None:
        """Raise what another rank has failed with, if one has; asks at most once a second."""
        if time.monotonic() - self._checked >= BEAT_SECONDS:
            self._checked = time.monotonic()
            if self._has("failed"):
                raise PilekitError(self._store.get("failed").decode())

    def wait_for_all(self) -> None:
        """Return when all ranks have come here; raise what one failed with, or that it is gone."""
        self._store.set(f"done/{self._ranks.rank}", "")
        for rank in range(self._ranks.world_size):
            beat, since = "", time.monotonic()
            while not self._has(f"done/{rank}"):
                self.check()
                newest = self._store.get(f"beat/{rank}").decode() if self._has(f"beat/{rank}") else ""
                if newest != beat:
                    beat, since = newest, time.monotonic()
                elif time.monotonic() - since > self._lost_after:
                    raise PilekitError(
                        f"rank {rank} is gone: no sign of life for {self._lost_after:g} seconds; look at its messages, "
                        "and run the same command again: with --out, what is recorded is not scored again"
                    )
                time.sleep(BEAT_SECONDS / 10)

    def tell(self, message: str) -> None:
        """Say what this rank fails with."""
        with suppress(RuntimeError):  # the store may be what is gone
            self._store.set("failed", message)

    def end(self) -> None:
        """No further sign of life."""
        self._ended.set()

    def _beat(self) -> None:
        beats = 0
        with suppress(RuntimeError):
            while not self._ended.is_set():
                self._store.set(f"beat/{self._ranks.rank}", str(beats))
                beats += 1
                self._ended.wait(BEAT_SECONDS)

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except RuntimeError as error:  # the process that kept it
            raise ToldElsewhere(
                f"rank {self._ranks.rank}: the rank that the others meet at is gone; look at the messages of the "
                "others, and run the same command again: with --out, what is recorded is not scored again"
            ) from error
