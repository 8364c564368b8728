"""Representatives of hot runs: kept members that stand for the run while its other members are decided.

A run of 100,000 documents that share a licence header cannot be compared pair by pair. A member is compared with the
kept members of its run, at most 128 of them: those that were of use last, as a new one takes the place of the one that
resembled nothing for longest. So a run costs what its length costs, a run of any number of copies of 128 documents
loses nothing, and where the longest is kept, what has been let go is mostly too long to resemble what follows. Two
documents that resemble each other mostly meet in other bands besides, where their run is short.

What the runs hold is on disk, as there may be more runs than memory holds: a run of so many members has as many words
of 64 bits there, the first for how many representatives it holds and what became of others, then their ranks.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]
Int32 = npt.NDArray[np.int32]

MOST = 128

_WORD = 8


class Representatives:
    """The representatives of all runs, in a file that has no name and is gone with the process."""

    def __init__(self, folder: Path):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)

    def __enter__(self) -> Representatives:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, begins: UInt64, rooms: Int32) -> tuple[UInt64, Int32, npt.NDArray[np.uint8]]:
        """(ranks uint64 [runs, MOST], how many of them are, let_go as in `comparing.decide`) of these runs.

        begins   where the members of each begin among those of all runs
        rooms    how many it may have: `room_of` its length
        """
        ranks = np.zeros((len(begins), MOST), dtype=np.uint64)
        held, let_go = np.zeros(len(begins), dtype=np.int32), np.zeros(len(begins), dtype=np.uint8)
        descriptor = self._file.fileno()
        for run, (begin, room) in enumerate(zip(begins.tolist(), rooms.tolist(), strict=True)):
            words = np.frombuffer(os.pread(descriptor, (room + 1) * _WORD, begin * _WORD), dtype=np.uint64)
            if len(words) and words[0]:
                let_go[run], held[run] = divmod(int(words[0]), 1 << 32)
                ranks[run, : held[run]] = words[1 : 1 + held[run]]
        return ranks, held, let_go

    def write(self, begins: UInt64, ranks: UInt64, held: Int32, let_go: npt.NDArray[np.uint8]) -> None:
        """Remember this of these runs."""
        firsts = held.astype(np.uint64) | let_go.astype(np.uint64) << np.uint64(32)
        words = np.concatenate([firsts[:, None], ranks], axis=1)
        descriptor = self._file.fileno()
        for begin, count, row in zip(begins.tolist(), held.tolist(), words, strict=True):
            os.pwrite(descriptor, row[: 1 + count].data, begin * _WORD)


def room_of(lengths: npt.NDArray[np.integer]) -> Int32:
    """How many representatives runs of these lengths may have: the last member need not be one."""
    return np.minimum(lengths.astype(np.int64) - 1, MOST).astype(np.int32)
