"""The ids and records of an output while it grows, in the folder `joined` of the job.

Each part of the work (a shard, a token file) is appended once, in order. The note of the part then records where
the output ended. After a kill the output is cut to the end in the last note, and the next part is appended. So the disk
never holds more than the output and the shards under way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pilekit.artifacts.job_folder import Output
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, visible
from pilekit.tokenize.files.documents import RECORD, RECORDS, Cut, Records
from pilekit.tokenize.files.formats import TokenFiles

if TYPE_CHECKING:
    from _typeshed import SupportsRead

_COPIED_BYTES = 1 << 20


class Joined:
    """The files of ids and the file of records; `cut` is where the output ends.

    parts     the names of all parts, in order; the first `done` of them are in the output
    results   the results in the parts' notes. If the output lacks what they list, they are emptied and the notes
              removed, so that all is done again
    """

    def __init__(self, files: TokenFiles, output: Output, parts: Sequence[str], results: dict[str, Any]) -> None:
        self.folder, self.files, self.output = output.folder / "joined", files, output
        self.records = self.folder / RECORDS
        ends = [results[part]["end"] for part in takewhile(lambda part: is_joined(results, part), parts)]
        self.done, self.cut = len(ends), Cut(*ends[-1]) if ends else Cut()
        if not self._resume():
            output.forget()
            results.clear()
            self.done, self.cut = 0, Cut()
            self._resume()

    def append(self, part: str, result: dict[str, Any], ids: SupportsRead[bytes], records: Iterable[Records]) -> None:
        """Append the ids and records of a part, and note where the output ends now."""
        self.folder.mkdir(exist_ok=True)
        with _appending(self.records) as records_file:
            for rows in records:
                for file, first, last in self.cut.place(rows["tokens"], self.files.limit):
                    size = int(rows["tokens"][first:last].sum(dtype=np.int64)) * self.files.item
                    with _appending(self.folder / self.files.raw(file), self.files.head) as out:
                        if not _copied(ids, out, size):
                            raise PilekitError(f"{visible(part)}: was changed while it was read; run again")
                records_file.write(rows.tobytes())
        self.output.note(part, {**result, "end": astuple(self.cut)})

    def _resume(self) -> bool:
        """Cut the files to `self.cut` and remove all others; False if one is missing or too short."""
        ends: dict[Path, int | None] = {}  # None: a full file of ids stays as it is
        if self.cut.documents:
            ends = {self.folder / self.files.raw(file): None for file in range(self.cut.file)}
            ends[self.folder / self.files.raw(self.cut.file)] = self.files.head + self.cut.tokens * self.files.item
            ends[self.records] = self.cut.documents * RECORD.itemsize
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path not in ends:
                path.unlink()
        for path, end in ends.items():
            if not path.exists():
                return False
            if end is None:
                continue
            with os.fdopen(open_own(path), "rb+") as file:
                if os.fstat(file.fileno()).st_size < end:
                    return False
                file.truncate(end)
        return True


def is_joined(results: dict[str, Any], part: str) -> bool:
    """Whether the part with this note is in the output."""
    return "end" in results.get(part, {})


def _copied(source: SupportsRead[bytes], target: BinaryIO, size: int) -> bool:
    """Copy `size` bytes; False if the source ends before."""
    while size:
        piece = source.read(min(size, _COPIED_BYTES))
        if not piece:
            return False
        size -= target.write(piece)
    return True


@contextmanager
def _appending(path: Path, head: int = 0) -> Iterator[BinaryIO]:
    """The file, open for appending, and synced to disk after the block. A new file begins with `head` zeros."""
    try:
        with os.fdopen(open_own(path), "rb+") as file:
            if not file.seek(0, os.SEEK_END):
                file.write(bytes(head))
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise PilekitError(f"{visible(str(path))}: cannot be written: {error.strerror}") from error
