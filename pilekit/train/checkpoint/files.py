"""What makes a folder a checkpoint: `state.json`, which names every other file with its size and xxh3 hash.

    step-N/__0_0.distcp, __1_0.distcp, ...    the tensors that each rank wrote (tensors.py)
    step-N/.metadata                          which of them lies where, in the format of torch.distributed.checkpoint
    step-N/state.json   {"xxh3": "<hash of the bytes of state>", "state": {"format": 2, "progress": {}, "files": {}}}

`state.json` is the last file that a save writes, so a folder without it is no checkpoint, and it seals itself: any byte
that differs from what was written, in any of the files, is found by `verify`, at 2 GB/s and more from memory on two
busy cores. torch itself loads a shard with a changed byte without a word.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash

from pilekit import __version__
from pilekit.engine.ranks import Ranks
from pilekit.errors import PilekitError, visible

STATE_FILE = "state.json"
INDEX_FILE = ".metadata"
FORMAT = 2

_SHARD_NAME = re.compile(r"__(0|[1-9][0-9]*)_[0-9]+\.distcp")

_NOT_ITS_FAULT = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands between two steps.

    step         steps done, the skipped ones too
    tokens       tokens trained on, padding not counted
    stream       `PileStream.state_dict()`, JSON types only
    threads      torch's intra-op threads, on which the exact sums depend
    model        fingerprint of the model's configuration
    skipped      steps that changed no weight: gradients overflowed, or there was no token to predict
    loss_scale   state of the loss scale, JSON types only; None where there is none
    world_size   ranks, on which the exact sums depend too
    """

    step: int
    tokens: int
    stream: dict[str, Any]
    threads: int
    model: str = ""
    skipped: int = 0
    loss_scale: dict[str, Any] | None = None
    world_size: int = 1


class FileSum(msgspec.Struct, frozen=True):
    """What one file must be."""

    bytes: int
    xxh3: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What `state.json` says; unknown fields, from a later pilekit of the same format, are passed over."""

    format: int
    """Version of the layout of the folder."""
    pilekit: str
    """Version of pilekit that wrote it."""
    torch: str
    """Version of torch that computed it."""
    progress: Progress
    """Where the run stood."""
    config: dict[str, Any]
    """The resolved config; infinite numbers as text, since JSON has none."""
    files: dict[str, FileSum]
    """The other files of the folder."""


class Damaged(Exception):
    """A folder that is no whole checkpoint; the text says why, without the folder's name."""


class _Sealed(msgspec.Struct, frozen=True):
    xxh3: str
    state: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int
    pilekit: str = "another version"


def own_sums(folder: Path, rank: int) -> dict[str, FileSum]:
    """Name, size and hash of each file that `rank` wrote, the index if it is rank 0; raises OSError."""
    names = [path.name for path in folder.iterdir() if (m := _SHARD_NAME.fullmatch(path.name)) and int(m[1]) == rank]
    if rank == 0:
        names.append(INDEX_FILE)
    return {name: _sum_of(folder / name) for name in sorted(names)}


def write_state(folder: Path, progress: Progress, config: Mapping[str, Any], files: Mapping[str, FileSum]) -> None:
    """Write `state.json` for the other files of `folder`, whose sums are given; raises OSError.

    PilekitError if a file is not there: then this rank and the one that wrote it do not see the same folder.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.exists() or path.stat().st_size != expected.bytes:
            raise PilekitError(
                f"{visible(str(folder))}: {name}, which another rank has written, is not there for rank 0; put the run "
                "into a folder that all machines share"
            )
    state = State(
        format=FORMAT,
        pilekit=__version__,
        torch=str(torch.__version__),
        progress=progress,
        config=_without_infinities(dict(config)),
        files=dict(files),
    )
    body = msgspec.json.format(msgspec.json.encode(state), indent=2)
    with (folder / STATE_FILE).open("xb") as file:
        file.write(b'{"xxh3": "%s", "state": %s}' % (xxhash.xxh3_128_hexdigest(body).encode(), body))
        file.flush()
        os.fsync(file.fileno())


def read_state(folder: Path) -> State:
    """What `state.json` says, proved to be as it was written; the other files are not looked at.

    Raises `Damaged`, or PilekitError for one that another pilekit wrote, of an earlier or a later format.
    """
    path = folder / STATE_FILE
    try:
        _regular_size(path)
        return unseal(path.read_bytes(), path)
    except OSError as error:
        raise _unreadable(folder, STATE_FILE, error) from error


def unseal(content: bytes, path: Path) -> State:
    """What the bytes of a `state.json` say; `path` is for the message. Raises as `read_state` does."""
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        if xxhash.xxh3_128_hexdigest(bytes(sealed.state)) != sealed.xxh3:
            raise Damaged(f"{STATE_FILE} is not as it was written")
        version = msgspec.json.decode(sealed.state, type=_Format)
        if version.format != FORMAT:
            raise PilekitError(
                f"{visible(str(path))}: has format {version.format}, and this pilekit {__version__} reads format "
                f"{FORMAT}; resume with pilekit {visible(version.pilekit, 40)}, which wrote it"
            )
        state = msgspec.json.decode(sealed.state, type=State)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Damaged(f"{STATE_FILE} is not a checkpoint's: {visible(str(error), 200)}") from error
    shards = state.files.keys() - {INDEX_FILE}
    if len(shards) == len(state.files) or not all(map(_SHARD_NAME.fullmatch, shards)):
        raise Damaged(f"{STATE_FILE} does not list the files of a checkpoint")
    return state


def verify(folder: Path) -> State:
    """Prove that every file of `folder` is as it was written: the sizes of all, then their hashes.

    Raises `Damaged`, or PilekitError for a checkpoint of another format, or one that cannot be read at the moment.
    """
    state = read_state(folder)
    if difference := _sizes_differ(folder, state) or _hashes_differ(folder, state, state.files):
        raise Damaged(difference)
    return state


def verify_together(folder: Path, ranks: Ranks, *, hashes: bool = True) -> State:
    """As `verify`, by all ranks at once: each hashes its share of the bytes, and all return or raise the same.

    Without `hashes` only sizes are looked at, for a folder that has just been verified.
    """

    def read() -> State | str:
        try:
            state = read_state(folder)
            return _sizes_differ(folder, state) or state
        except Damaged as damage:
            return str(damage)

    state = ranks.on_rank0(read)
    if isinstance(state, str):
        raise Damaged(state)
    if not hashes:
        return state
    mine = deal({name: file.bytes for name, file in state.files.items()}, ranks.world_size)[ranks.rank]
    difference = ranks.on_all_ranks(lambda: _hashes_differ(folder, state, mine))
    for reason in ranks.gather(difference):
        if reason is not None:
            raise Damaged(reason)
    return state


def deal(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """The names dealt out to `count`, the largest first, always to who has least: the same on every rank."""
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += sizes[name]
    return shares


def _sizes_differ(folder: Path, state: State) -> str | None:
    """What is wrong with the size of the first file that is not as large as it was written; None if nothing is."""
    for name, expected in state.files.items():
        try:
            size = _regular_size(folder / name)
        except Damaged as damage:
            return str(damage)
        except OSError as error:
            return str(_unreadable(folder, name, error))
        if size != expected.bytes:
            return f"{name} has {size:,} bytes, not the {expected.bytes:,} that were written"
    return None


def _hashes_differ(folder: Path, state: State, names: Iterable[str]) -> str | None:
    """What is wrong with the content of the first of these files that is not as it was written."""
    for name in names:
        try:
            if _sum_of(folder / name) != state.files[name]:
                return f"{name} is not as it was written"
        except OSError as error:
            return str(_unreadable(folder, name, error))
    return None


def _sum_of(path: Path) -> FileSum:
    with path.open("rb") as file:
        return FileSum(
            bytes=os.fstat(file.fileno()).st_size, xxh3=hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        )


def _regular_size(path: Path) -> int:
    """The file's size; `Damaged` if it is a folder, or a pipe, which would be read from for ever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.name} is not a file")
    return status.st_size


def _unreadable(folder: Path, name: str, error: OSError) -> Damaged:
    """Why a file cannot be read; PilekitError where that says nothing of the file, so that no good one is given up."""
    if error.errno in _NOT_ITS_FAULT:
        raise PilekitError(
            f"{visible(str(folder / name))}: cannot be read: {error.strerror}; put that right and run the command again"
        ) from error
    if folder.exists() and not folder.is_dir():
        return Damaged("it is not a folder")
    if isinstance(error, FileNotFoundError):
        return Damaged(f"it has no {name}")
    return Damaged(f"{name} cannot be read: {error.strerror}")


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
