"""The output while it grows, in the folder `joined` of the job: shards are appended to it in their order.

A shard is appended once, and its own files are removed. The note of the shard then says where the output ended. After a
kill the output is cut to that place, and the next shard is appended. So there is never more on disk than the output and
the shards under way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pilekit.artifacts.job_folder import Output
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, visible
from pilekit.tokenize.files.documents import RECORD, ROWS, Cut
from pilekit.tokenize.files.formats import TokenFiles

IDS, RECORDS = ".ids", ".records"
"""The ends of the names of a shard's own files."""

_COPIED_BYTES = 1 << 20


class Joined:
    """The files of ids and the file of records in `folder`; `cut` is where the output ends."""

    def __init__(self, folder: Path, files: TokenFiles, cut: Cut):
        self.folder, self.files, self.cut = folder, files, cut
        self.records = folder / RECORDS

    def resume(self) -> bool:
        """Cut the output to its end and remove what is behind; False if it holds less than that."""
        raws = [self.folder / self.files.raw(file) for file in range(self.cut.file + 1)]
        size = self.files.head + self.cut.tokens * self.files.item
        ends = {raws[-1]: size, self.records: self.cut.documents * RECORD.itemsize} if self.cut.documents else {}
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path not in ends and path not in (raws if ends else ()):
                path.unlink()
        if not all(path.exists() for path in (*raws, *ends)):
            return not ends
        for path, end in ends.items():
            with os.fdopen(open_own(path), "rb+") as file:
                if os.fstat(file.fileno()).st_size < end:
                    return False
                file.truncate(end)
        return True

    def append(self, output: Output, name: str, result: dict[str, Any]) -> None:
        """Append the shard `name`, note where the output ends now, and remove the shard's own files."""
        parts = output.path(f"shards/{name}", IDS), output.path(f"shards/{name}", RECORDS)
        self.folder.mkdir(exist_ok=True)
        with parts[0].open("rb") as ids, parts[1].open("rb") as lengths, _appending(self.records) as records:
            while len(rows := np.fromfile(lengths, RECORD, ROWS)):
                for file, first, last in self.cut.place(rows["tokens"], self.files.limit):
                    size = int(rows["tokens"][first:last].sum(dtype=np.int64)) * self.files.item
                    with _appending(self.folder / self.files.raw(file), self.files.head) as out:
                        while size:
                            size -= out.write(ids.read(min(size, _COPIED_BYTES)))
                records.write(rows.tobytes())
        output.note(name, {**result, "end": astuple(self.cut)})
        for part in parts:
            part.unlink()


@contextmanager
def _appending(path: Path, head: int = 0) -> Iterator[BinaryIO]:
    """The file, open for writing at its end, and on disk after the block. A new file gets `head` zeros first."""
    try:
        with os.fdopen(open_own(path), "rb+") as file:
            if not file.seek(0, os.SEEK_END):
                file.write(bytes(head))
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise PilekitError(f"{visible(str(path))}: cannot be written: {error.strerror}") from error
