"""How a verification that was stopped goes on: which shards were found right lies in the cache folder until it ends.

A result counts only for the same question (root, shards, sums, manifest), for a shard that is as it was (fingerprint,
time of change), and for a day. Shards with findings are read again: what was wrong may have been mended. A verification
that ends removes its results, so the next one reads everything.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.cache_folder import cache_folder
from pilekit.artifacts.file_lock import locked
from pilekit.corpus import Shard
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Fingerprint, changed_at, fingerprint

KEPT_SECONDS = 24 * 60 * 60


class _Kept(msgspec.Struct, frozen=True):
    """What lies in a file: when what state of a shard was found right, and what was told of it."""

    at: float
    state: tuple[int, str, int]
    result: dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """The results of one verification so far; goes to worker processes. Without a folder nothing is kept."""

    folder: Path | None

    def keep(self, shard: Shard, now: Fingerprint, changed: int, result: dict[str, Any]) -> None:
        """Note that `shard`, in the state that it had before it was read, was found right."""
        if self.folder is not None:
            kept = msgspec.json.encode(_Kept(time.time(), (now.size, now.sample, changed), result))
            # A full disk must not end a verification, which needs none.
            with suppress(PilekitError), write_atomically(_file(self.folder, shard)) as file:
                file.write(kept)

    def kept(self, shards: Iterable[Shard]) -> dict[str, dict[str, Any]]:
        """What an earlier, stopped verification noted, by shard, as far as it still holds."""
        if self.folder is None:
            return {}
        found = {shard.name: _result(self.folder, shard) for shard in shards}
        return {name: result for name, result in found.items() if result is not None}


@contextmanager
def verify_progress(root: str, question: Any) -> Iterator[Progress]:
    """The results kept for this question about the corpus in `root`; a question is known by its `repr`.

    They are removed when the block ends well, and left for the next run if it does not.
    Raises PilekitError if another process is at the same. Without a cache folder that can be written nothing is kept.
    """
    key = xxhash.xxh3_128_hexdigest(repr([__version__, root, question]).encode(errors="surrogateescape"))
    try:
        above = cache_folder() / "verify"
        folder = above / key
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, PilekitError):
        yield Progress(None)
        return
    with ExitStack() as lock:
        try:
            lock.enter_context(locked(above / f"{key}.lock", wait=False))
        except PilekitError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                yield Progress(None)
                return
            raise PilekitError(
                f"{visible(root)}: is being verified by another process; wait for it, or stop it"
            ) from error
        _remove_old(above)
        yield Progress(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _file(folder: Path, shard: Shard) -> Path:
    # A hash: a shard's name may hold anything, and be longer than a file's name.
    return folder / f"{xxhash.xxh3_128_hexdigest(shard.name.encode())}.json"


def _result(folder: Path, shard: Shard) -> dict[str, Any] | None:
    try:
        kept = msgspec.json.decode(_file(folder, shard).read_bytes(), type=_Kept)
        if not 0 <= time.time() - kept.at < KEPT_SECONDS:
            return None
        now = fingerprint(shard.path)
    except (OSError, msgspec.DecodeError, PilekitError):
        return None
    return kept.result if kept.state == (now.size, now.sample, changed_at(shard.path)) else None


def _remove_old(above: Path) -> None:
    """Remove what verifications left that nobody went on with."""
    for folder in above.iterdir():
        with suppress(OSError):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(folder)
