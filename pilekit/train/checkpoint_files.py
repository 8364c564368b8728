"""What makes a folder a checkpoint: `state.json`, which names every other file with its size and xxh3 hash.

    {"xxh3": "<hash of the bytes of state>", "state": {"format": 1, ..., "progress": {...}, "files": {...}}}

It is the last file that a save writes, so a folder without it is no checkpoint, and it seals itself: any byte that
differs from what was written, in any of the files, is found by `verify`, at 2 GB/s and more from memory on two busy
cores. All of it is JSON and safetensors; nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash

from pilekit import __version__
from pilekit.errors import PilekitError, visible

STATE_FILE = "state.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
FORMAT = 1

_NOT_ITS_FAULT = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands between two steps.

    step      steps done
    tokens    tokens trained on, padding not counted
    stream    `PileStream.state_dict()`, JSON types only
    threads   torch's intra-op threads, on which the exact sums depend
    model     fingerprint of the model's configuration
    """

    step: int
    tokens: int
    stream: dict[str, Any]
    threads: int
    model: str = ""


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


def write_state(folder: Path, progress: Progress, config: dict[str, Any]) -> None:
    """Write `state.json` for the other files that `folder` holds by now; raises OSError."""
    state = State(
        format=FORMAT,
        pilekit=__version__,
        torch=str(torch.__version__),
        progress=progress,
        config=_without_infinities(config),
        files={name: _sum_of(folder / name) for name in (MODEL_FILE, OPTIMIZER_FILE)},
    )
    body = msgspec.json.format(msgspec.json.encode(state), indent=2)
    with (folder / STATE_FILE).open("xb") as file:
        file.write(b'{"xxh3": "%s", "state": %s}' % (xxhash.xxh3_128_hexdigest(body).encode(), body))
        file.flush()
        os.fsync(file.fileno())


def read_state(folder: Path) -> State:
    """What `state.json` says, proved to be as it was written; the other files are not looked at.

    Raises `Damaged`, or PilekitError for one that a later pilekit wrote.
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
    if set(state.files) != {MODEL_FILE, OPTIMIZER_FILE}:
        raise Damaged(f"{STATE_FILE} does not list the files of a checkpoint")
    return state


def verify(folder: Path) -> State:
    """Prove that every file of `folder` is as it was written: its size, then its hash.

    Raises `Damaged`, or PilekitError for a checkpoint that a later pilekit wrote.
    """
    state = read_state(folder)
    try:
        for name, expected in state.files.items():
            size = _regular_size(folder / name)
            if size != expected.bytes:
                raise Damaged(f"{name} has {size:,} bytes, not the {expected.bytes:,} that were written")
        for name, expected in state.files.items():
            if _sum_of(folder / name) != expected:
                raise Damaged(f"{name} is not as it was written")
    except OSError as error:
        raise _unreadable(folder, name, error) from error
    return state


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
