"""The manifest of a checkpoint: `state.json`, which names every other file with its size and xxh3 hash.

    step-N/__0_0.distcp, __1_0.distcp, ...    the tensors that each rank wrote (tensors.py)
    step-N/.metadata                          the index of these tensors, in torch.distributed.checkpoint's format
    step-N/state.json                         `State`, sealed (artifacts/sealed.py)

A save writes `state.json` last, so a folder without it is no checkpoint. `verify` finds any changed byte that says
something. Torch itself loads a file with a changed byte without an error. Verifying reads more than 2 GB/s from memory
on two cores.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import xxhash

from pilekit.artifacts.checked import reason_of_damage
from pilekit.artifacts.own_file import read_own, reading_own
from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.errors import PilekitError
from pilekit.train.step.loss_scale import LossScaleState
from pilekit.workers.ranks import Ranks

STATE_FILE = "state.json"
INDEX_FILE = ".metadata"

_SHARD_NAME = re.compile(r"__(0|[1-9][0-9]*)_[0-9]+\.distcp")

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Threads = Annotated[int, msgspec.Meta(ge=1, le=4096)]

_NOT_DAMAGE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
"""Read errors that say nothing about the file: a run must not skip a good checkpoint because of them."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run between two steps.

    step         steps done, including skipped ones
    tokens       tokens trained on, without padding
    stream       `PileStream.state_dict()`, JSON types only
    threads      torch's intra-op threads, on which the exact sums depend
    model        fingerprint of the model's configuration
    skipped      steps that changed no weight: gradients overflowed, or there was no token to predict
    loss_scale   state of the loss scale, or None if there is none
    world_size   number of ranks, on which the exact sums depend too
    """

    step: _Count
    tokens: _Count
    stream: dict[str, Any]
    threads: _Threads
    model: str = ""
    skipped: _Count = 0
    loss_scale: LossScaleState | None = None
    world_size: _Count = 1


class FileSum(msgspec.Struct, frozen=True):
    """Size and hash of one file."""

    bytes: int
    xxh3: str


class Damaged(PilekitError):
    """A folder is not a complete checkpoint. The text gives the reason, without the folder's name and a remedy."""


class _Checkpoint(SealedKind):
    """Raises `Damaged` for damage, after which an older checkpoint is tried. Another format stops the search."""

    def wrong_kind(self, path: str | Path, why: str) -> Damaged:
        return Damaged(f"{STATE_FILE} is not that of {self.name} ({why})")

    def damaged(self, path: str | Path, error: Exception | str) -> Damaged:
        return Damaged(f"{STATE_FILE} is damaged ({error if isinstance(error, str) else reason_of_damage(error)})")


CHECKPOINT = _Checkpoint("a checkpoint", 3, "resume with the pilekit that wrote it")


class State(SealedHeader, frozen=True, kw_only=True):
    """The content of `state.json`."""

    format: int = CHECKPOINT.format
    torch: str
    """Version of torch that computed it."""
    progress: Progress
    """The run's progress."""
    config: dict[str, Any]
    """The resolved config; infinite numbers as text, because JSON has none."""
    files: dict[str, FileSum]
    """The other files of the folder."""


def own_sums(folder: Path, rank: int) -> dict[str, FileSum]:
    """Name, size and hash of each file that `rank` wrote. Rank 0 wrote the index too. Raises OSError."""
    names = [path.name for path in folder.iterdir() if (m := _SHARD_NAME.fullmatch(path.name)) and int(m[1]) == rank]
    if rank == 0:
        names.append(INDEX_FILE)
    return {name: _sum_of(folder / name) for name in sorted(names)}


def write_state(folder: Path, progress: Progress, config: Mapping[str, Any], files: Mapping[str, FileSum]) -> None:
    """Write `state.json` for the other files of `folder`, whose sums are given. Raises OSError.

    Raises PilekitError if a file is missing: this rank and the rank that wrote it do not see the same folder.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.exists() or path.stat().st_size != expected.bytes:
            raise PilekitError(
                f"{folder}: {name}, which another rank has written, is not there for rank 0; put the run "
                "into a folder that all machines share"
            )
    state = State(
        torch=str(torch.__version__),
        progress=progress,
        config=json.loads(json.dumps(config), parse_constant=lambda number: str(float(number))),
        files=dict(files),
    )
    with (folder / STATE_FILE).open("xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(CHECKPOINT.sealed(state)), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_state(folder: Path) -> State:
    """The content of `state.json`, proved to be unchanged. The other files are not checked.

    Raises `Damaged`, or PilekitError if another version of pilekit wrote it in another format.
    """
    path = folder / STATE_FILE
    with _naming_damage(STATE_FILE, folder):
        content = read_own(path)
    return decode_state(path, content)


def decode_state(path: Path, content: bytes) -> State:
    """The content of the `state.json` at `path`; raises as `read_state`."""
    value = CHECKPOINT.parsed(path, content)
    if isinstance(value, dict) and "xxh3" in value and isinstance(old := value.get("state"), dict):
        raise CHECKPOINT.another_format(path, 2, str(old.get("pilekit")))
    state = CHECKPOINT.open_dict(path, value, State)
    if state.progress.skipped > state.progress.step:
        raise CHECKPOINT.damaged(path, "more steps were skipped than done")
    shards = state.files.keys() - {INDEX_FILE}
    if len(shards) == len(state.files) or not all(map(_SHARD_NAME.fullmatch, shards)):
        raise CHECKPOINT.damaged(path, "it does not list the files of a checkpoint")
    return state


def verify(folder: Path, ranks: Ranks | None = None, *, hashes: bool = True) -> State:
    """Prove that every file of `folder` is unchanged: first all sizes, then all hashes.

    Raises `Damaged`, or PilekitError if the checkpoint has another format or cannot be read at the moment. With
    `ranks`, all ranks call this together: each hashes a share of the bytes, and all return or raise the same.
    `hashes=False` compares sizes only, for a folder that has just been verified.
    """

    def with_right_sizes() -> State | Damaged:
        try:
            state = read_state(folder)
            for name, expected in state.files.items():
                with _naming_damage(name, folder):
                    size = (folder / name).stat().st_size
                if size != expected.bytes:
                    raise Damaged(f"{name} has {size:,} bytes, not the {expected.bytes:,} that were written")
        except Damaged as damage:
            return damage
        return state

    state = with_right_sizes() if ranks is None else ranks.on_rank0(with_right_sizes)
    if isinstance(state, Damaged):
        raise state
    if not hashes:
        return state
    rank, world_size = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
    own_share = balance({name: file.bytes for name, file in state.files.items()}, world_size)[rank]

    def first_damage() -> str | None:
        try:
            for name in own_share:
                with _naming_damage(name, folder):
                    file_sum = _sum_of(folder / name)
                if file_sum != state.files[name]:
                    return f"{name} is not as it was written"
        except Damaged as damage:
            return str(damage)
        return None

    for reason in [first_damage()] if ranks is None else ranks.gather(ranks.on_all_ranks(first_damage)):
        if reason is not None:
            raise Damaged(reason)
    return state


def balance(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divide names among `count` lists of about the same total size. The result is the same on every rank."""
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):  # the largest first, to the smallest list
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += sizes[name]
    return shares


def _sum_of(path: Path) -> FileSum:
    with reading_own(path) as file:
        return FileSum(
            bytes=os.fstat(file.fileno()).st_size, xxh3=hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        )


@contextmanager
def _naming_damage(name: str, folder: Path) -> Iterator[None]:
    """Turn an OSError of reading the file `name` into `Damaged`, or PilekitError if it says nothing about the file."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_DAMAGE:
            raise PilekitError(
                f"{folder / name}: cannot be read: {error.strerror}; correct that and run the command again"
            ) from error
        missing = isinstance(error, FileNotFoundError)
        raise Damaged(f"it has no {name}" if missing else f"{name} cannot be read: {error.strerror}") from error
