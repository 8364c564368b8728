"""Telling that an epoch is given once more, because nobody said that the one before was.

A stock DataLoader's workers are copies of the stream as it stands in the main process. There, without `advance`, it
stands where it stood: so the next iteration gives the very same batches, silently. The main process sees neither
iteration, and the workers of the second know nothing of those of the first. So where the last iteration that was given
in full began is kept in memory which all of them share, and which the main process clears with all that it records.
"""

from __future__ import annotations

import ctypes
import logging
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

logger = logging.getLogger(__name__)

_NOWHERE = -1


class RepeatedEpoch:
    """Of one stream, in its process and in those of its workers; of a copy of the stream nothing is known."""

    def __init__(self, shared: Any = None) -> None:
        self._shared = RawArray(ctypes.c_int64, [_NOWHERE, False]) if shared is None else shared  # began, told

    def __reduce__(self) -> tuple[Any, ...]:
        return RepeatedEpoch, () if get_spawning_popen() is None else (self._shared,)

    def forget(self) -> None:
        """Whatever was given is recorded, or given again on purpose."""
        self._shared[0] = _NOWHERE

    def given(self, batch: int) -> None:
        """A worker has made the last batch of the iteration that began with this one."""
        self._shared[0] = batch

    def begin(self, batch: int) -> None:
        """An iteration begins with this batch: warn, once, if that is where the last one began."""
        if self._shared[0] == batch and not self._shared[1]:
            self._shared[1] = True
            logger.warning(
                "this epoch gives the same batches as the one before, of which none was recorded: call "
                "stream.advance(batch) for each batch, or iterate stream.loader(num_workers=...), which does"
            )
