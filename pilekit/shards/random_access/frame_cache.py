"""A folder with frames of remote shards: what was fetched once is read from there, by any number of processes.

    <folder>/<key>.frame    16 bytes: xxh3_128 of the rest; the stored bytes of one frame
    <folder>/size           8 bytes: an upper bound of what the frames take; who holds its lock may add and remove
    <folder>/partial        a frame that is being written

A key is a hash of the shard's fingerprint and the frame's place, so a shard that was replaced has other keys, and one
that is mirrored the same. Reading takes no lock: a frame that was removed meanwhile, is cut off or damaged is fetched.

Adding holds the lock: first the frame's size is counted, then it is written beside its name and renamed. Where the
bound would be passed, the frames used longest ago go first, until a tenth of the bound is free, as finding them means
looking at all. Killed at any moment, what is left is a count that is too high or a partial frame: the next look at all
frames mends the one, the next writer the other. No file but these is touched. The cache never stops who reads: where
its lock is not free, or its disk is full, a frame is left out.

fsspec's caches (`blockcache::`, `filecache::`, `simplecache::`) have no bound.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pilekit.artifacts.own_file import open_own, read_own
from pilekit.errors import PilekitError, visible

logger = logging.getLogger(__name__)

_SUFFIX = ".frame"
_IS_FRAME = re.compile(r"[0-9a-f]{32}\.frame").fullmatch
_SUM_BYTES = 16
_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class FrameCache:
    """Frames in `folder`, whose files take at most `most` bytes together; made by `at`."""

    folder: Path
    most: int

    @classmethod
    def at(cls, folder: str | Path, most: int) -> FrameCache:
        """The cache in this folder, which is made if it is missing; `PilekitError` where nothing can be written."""
        if type(most) is not int or most < 1:
            raise PilekitError(f"a cache's size is a whole number of bytes from 1 on, not {visible(repr(most), 80)}")
        cache = cls(Path(folder).absolute(), most)
        try:
            cache.folder.mkdir(parents=True, exist_ok=True)
            with cache._locked() as size:
                if size is not None:
                    os.ftruncate(size, 0)  # The machine may have gone down before a count was on disk.
                    cache._make_room(size, 0)
        except OSError as error:
            raise PilekitError(
                f"{visible(str(folder))}: cannot be a cache: {visible(error.strerror or str(error), 200)}; name a "
                "folder that can be written"
            ) from error
        return cache

    def get(self, key: str, size: int) -> bytes | None:
        """The frame of that key, of `size` bytes; None if it is not there."""
        path = self._path(key)
        try:
            stored = read_own(path)
        except OSError:
            return None
        frame = stored[_SUM_BYTES:]
        if len(frame) == size and stored[:_SUM_BYTES] == xxhash.xxh3_128_digest(frame):
            return frame
        with suppress(OSError):
            path.unlink()
        return None

    def used(self, key: str, frame: bytes | memoryview) -> None:
        """This frame was used, and is whole: it is added, or is now the one used last."""
        path = self._path(key)
        try:
            os.utime(path)
            return
        except OSError:
            pass
        size = _SUM_BYTES + len(frame)
        if size > self.most:
            return
        try:
            with self._locked() as counted:
                if counted is not None:
                    self._make_room(counted, size)
                    partial = self.folder / "partial"
                    partial.unlink(missing_ok=True)  # of a killed writer
                    with partial.open("xb") as file:
                        file.write(xxhash.xxh3_128_digest(frame))
                        file.write(frame)
                    partial.replace(path)
        except OSError as error:
            with suppress(OSError):
                (self.folder / "partial").unlink()
            why = visible(error.strerror or str(error), 200)
            logger.warning("%s: a frame cannot be kept: %s", visible(str(self.folder)), why)

    def _path(self, key: str) -> Path:
        return self.folder / (xxhash.xxh3_128_hexdigest(key.encode()) + _SUFFIX)

    def _make_room(self, count: int, size: int) -> None:
        """Count `size` more bytes, and remove what was used longest ago where that is too much; under the lock.

        count   descriptor of the file `size`
        """
        told = os.pread(count, 9, 0)
        total = int.from_bytes(told, "little") if len(told) == 8 else None
        if total is None or total + size > self.most:
            total = 0
            frames = []
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if _IS_FRAME(entry.name):
                        with suppress(FileNotFoundError):
                            about = entry.stat(follow_symlinks=False)
                            frames.append((about.st_mtime_ns, entry.name, about.st_size))
                            total += about.st_size
            if total + size > self.most:
                room = min(self.most - size, self.most - self.most // 10)
                for _, name, freed in sorted(frames):
                    if total <= room:
                        break
                    with suppress(FileNotFoundError):
                        (self.folder / name).unlink()
                    total -= freed
        os.ftruncate(count, 8)
        os.pwrite(count, (total + size).to_bytes(8, "little"), 0)

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The descriptor of the file `size`, locked; None if another process holds its lock for long."""
        file = open_own(self.folder / "size", alone=True)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        yield None
                        return
                    time.sleep(0.002)
            yield file
        finally:
            os.close(file)
