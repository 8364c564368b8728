"""Hot runs: lists of more than 64 documents that share a band key, on disk, each list once.

Ten thousand files with one licence header share not one band but twenty, mostly the same files each time. Lists are
gathered band by band, with a 128-bit hash of their members, and of those with equal hashes one is kept. They come in
the order of that hash, which depends on nothing but the members.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.dedup.match.external_sort import RowSort, scratch_errors
from pilekit.dedup.match.rows import AT_A_TIME, Rows
from pilekit.dedup.match.runs import Found


@dataclass(frozen=True)
class HotRuns:
    """All lists: the ranks of all members, one list after the other, and the length of each."""

    members: Rows
    lengths: Rows

    @classmethod
    def of(cls, folder: Path) -> HotRuns:
        """Those in a folder."""
        return cls(Rows(folder / "hot.members", 1), Rows(folder / "hot.lengths", 1))


class HotLists:
    """Lists as they are found, band by band.

    folder    for scratch files and for the lists
    memory    bytes to be used; of a list 40 bytes are gathered, not its members
    """

    def __init__(self, folder: Path, memory: int):
        self._folder = folder
        self._files: dict[int, IO[bytes]] = {}
        self._lists = RowSort(folder, 5, memory)  # hash, hash, length, band, begin

    def __enter__(self) -> HotLists:
        return self

    def __exit__(self, *_: object) -> None:
        self._lists.close()
        for file in self._files.values():
            file.close()

    def add(self, band: int, found: Found) -> None:
        """Take the hot runs in what was found in a band; of one band in the order in which it was found."""
        if len(found.members):
            with scratch_errors(self._folder):
                if band not in self._files:
                    self._files[band] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed at the end)
                self._files[band].write(found.members.data)
        if found.hot.shape[1]:
            high, low, length, begin = found.hot
            self._lists.add(np.stack([high, low, length, np.full_like(high, band), begin]))

    def write(self) -> HotRuns:
        """Write each list once."""
        runs = HotRuns.of(self._folder)
        with write_atomically(runs.members.path) as members, write_atomically(runs.lengths.path) as lengths:
            for length, band, begin in self._distinct():
                lengths.write(length.to_bytes(8, "little"))
                self._files[band].seek(8 * begin)
                for rest in range(length, 0, -AT_A_TIME):
                    members.write(self._files[band].read(8 * min(rest, AT_A_TIME)))
        return runs

    def _distinct(self) -> Iterator[tuple[int, int, int]]:
        """(length, band, begin) of a list of each hash, by hash."""
        last = (-1, -1)
        for table in self._lists.chunks():
            for high, low, length, band, begin in table.T.tolist():
                if last != (high, low):
                    yield length, band, begin
                    last = (high, low)
