"""Two caches of frames: `FrameLRU` keeps decoded frames in memory, `FrameCache` keeps stored frames of remote shards.

Neighbouring documents share one decoding: the least recently used frames are dropped first. On disk, each frame of a
remote shard is fetched once and serves any number of processes:

    <folder>/<key>.frame    16 bytes: xxh3_128 of the rest; the stored bytes of one frame
    <folder>/size           an upper bound of the bytes that all frames take, as decimal digits
    <folder>/partial        a frame that is being written; renamed when complete
    <folder>/lock           held by the process that adds and removes

A key is a hash of the shard's fingerprint and the frame's place, so a replaced shard has other keys. Readers take no
lock: if a frame is missing, cut off or damaged, it is fetched. When a new frame would exceed the bound, the least
recently used frames are removed until a tenth of the bound is free. After a kill, the count in `size` can only be too
high; the next listing of all frames corrects it. The cache on disk touches no other file and follows no symbolic link.
A frame is not cached while another process holds the lock, or when the disk is full.

fsspec's caches (`blockcache::`, `filecache::`, `simplecache::`) have no bound.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pilekit.artifacts.file_lock import locked
from pilekit.artifacts.own_file import open_own
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.read.open import MAX_DOCUMENT_BYTES

logger = message_logger(__name__)

HELD_BYTES = 64 << 20
WHOLE_BYTES = 128 << 20
"""Corpora up to this size, decoded, are held whole for repeated reads."""
BYTES_PER_LINE = 8
"""The memory that a decoded frame takes for the place of each line, in addition to its text."""

_IS_FRAME = re.compile(r"[0-9a-f]{32}\.frame").fullmatch
_SUM_BYTES = 16


def frames_fit(index: ShardIndex, held_bytes: int = HELD_BYTES, max_document_bytes: int = MAX_DOCUMENT_BYTES) -> bool:
    """Whether the shard's frames are small enough to be decoded whole.

    The measure is the size of the frame in which a byte of text lies, averaged over all bytes. A single long document
    hardly changes it, but no frame may be longer than the longest document.
    """
    sizes = np.diff(index.frames.text_offset, append=index.header.content_bytes).astype(np.float64)
    sizes += BYTES_PER_LINE * np.diff(index.frames.line, append=index.header.lines)
    # The sum of squares by the sum is that average.
    fit = float(np.square(sizes).sum()) <= held_bytes * float(sizes.sum())
    return fit and sizes.max(initial=0) <= max_document_bytes


class FrameLRU:
    """The most recently used frames of one or several shards, together at most `held_bytes`.

    whole   whether the corpus has at most `WHOLE_BYTES` of text, so that all of its frames are held
    """

    def __init__(self, held_bytes: int = HELD_BYTES, *, whole: bool = False) -> None:
        self.held_bytes, self.whole = held_bytes, whole
        self._frames: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> Any:
        """The frame of that key; None if it is not held."""
        if key not in self._frames:
            return None
        self._frames.move_to_end(key)
        return self._frames[key][0]

    def add(self, key: Hashable, frame: object, size: int) -> None:
        """Hold a frame of `size` bytes, and drop the least recently used frames if there are too many bytes."""
        self._frames[key] = (frame, size)
        self._bytes += size
        while self._bytes > (WHOLE_BYTES if self.whole else self.held_bytes):
            _, (_, dropped) = self._frames.popitem(last=False)
            self._bytes -= dropped


@dataclass(frozen=True)
class FrameCache:
    """Frames in `folder`, whose files take at most `most` bytes together; made by `at`."""

    folder: Path
    most: int

    @classmethod
    def at(cls, folder: str | Path, most: int) -> FrameCache:
        """The cache in this folder, which is made if it is missing; `PilekitError` if nothing can be written there."""
        if type(most) is not int or most < 1:
            raise PilekitError(f"a cache's size is a whole number of bytes from 1 on, not {shortened(repr(most), 80)}")
        cache = cls(Path(folder).absolute(), most)
        try:
            cache.folder.mkdir(parents=True, exist_ok=True)
            with locked(cache.folder / "lock", wait=False):
                (cache.folder / "size").unlink(missing_ok=True)  # A crash of the machine may have lost the count.
                cache._make_room(0)
        except (OSError, PilekitError) as error:
            if why := _reason(error):
                raise PilekitError(f"{folder}: cannot be a cache: {why}; name a folder that can be written") from error
        return cache

    def get(self, key: str, size: int) -> bytes | None:
        """The frame of that key, of `size` bytes; None if it is not there."""
        path = self._path(key)
        try:
            with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
                stored = file.read(_SUM_BYTES + size + 1)
        except OSError:
            return None
        frame = stored[_SUM_BYTES:]
        if len(frame) == size and stored[:_SUM_BYTES] == xxhash.xxh3_128_digest(frame):
            return frame
        with suppress(OSError):
            path.unlink()
        return None

    def used(self, key: str, frame: bytes | memoryview) -> None:
        """Note that this undamaged frame was used: add it, or make it the most recently used frame."""
        path, size = self._path(key), _SUM_BYTES + len(frame)
        with suppress(OSError):
            os.utime(path, follow_symlinks=False)
            return
        if size > self.most:
            return
        try:
            with locked(self.folder / "lock", wait=False):
                self._make_room(size)
                self._write("partial", xxhash.xxh3_128_digest(frame), frame)
                (self.folder / "partial").replace(path)
        except (OSError, PilekitError) as error:
            if why := _reason(error):
                logger.warning("%s: a frame cannot be kept: %s", self.folder, why)
                with suppress(OSError):
                    (self.folder / "partial").unlink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{xxhash.xxh3_128_hexdigest(key.encode())}.frame"

    def _write(self, name: str, *parts: bytes | memoryview) -> None:
        (self.folder / name).unlink(missing_ok=True)  # of a killed writer, or a link to another file
        with (self.folder / name).open("xb") as file:
            file.writelines(parts)

    def _make_room(self, size: int) -> None:
        """Count `size` more bytes; if they pass the bound, remove the least recently used frames. Needs the lock."""
        try:
            with os.fdopen(open_own(self.folder / "size", os.O_RDONLY), "rb") as file:
                total = int(file.read(30))
        except (FileNotFoundError, ValueError):
            total = -1
        if not 0 <= total <= self.most - size:
            with os.scandir(self.folder) as entries:
                frames = [(entry, entry.stat(follow_symlinks=False)) for entry in entries if _IS_FRAME(entry.name)]
            total = sum(about.st_size for _, about in frames)
            room = min(self.most - size, self.most - self.most // 10) if total + size > self.most else total
            for entry, about in sorted(frames, key=lambda frame: frame[1].st_mtime_ns):
                if total <= room:
                    break
                Path(entry).unlink(missing_ok=True)
                total -= about.st_size
        self._write("size", b"%d" % (total + size))


def _reason(error: Exception) -> str | None:
    """Why a frame cannot be kept; None if another process holds the lock."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, BlockingIOError):
        return None
    return shortened(getattr(cause, "strerror", None) or str(error), 200)
