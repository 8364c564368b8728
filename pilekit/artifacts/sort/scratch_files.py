"""Scratch files with a value for each document: arrays in files without a name, and flags in files that all nodes read.

An unnamed file vanishes with its process, so a killed process leaves nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.errors import PilekitError


class Scratch(NamedTuple):
    """Where a step sorts: a folder for files without a name, and the bytes of memory that the step may use."""

    folder: Path
    memory: int


@contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a `PilekitError` that names the folder."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise PilekitError(f"{folder}: scratch space cannot be used: {why}") from error


def scratch_array(folder: Path, dtype: npt.DTypeLike, length: int) -> npt.NDArray[Any]:
    """An array of zeros in a file without a name. The system writes it out when memory is short."""
    with scratch_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        # Allocated in full: writing to a mapped hole of a full disk would kill the process.
        os.posix_fallocate(file.fileno(), 0, max(1, length) * np.dtype(dtype).itemsize)
        return np.memmap(file, dtype=dtype)[:length]


def write_flags(folder: Path, flags: npt.NDArray[np.bool_]) -> Path:
    """Write flags into the folder as bits. The file's name is their hash, so no node can show an older one."""
    bits = np.packbits(flags)
    path = folder / f"{xxhash.xxh3_128_hexdigest(bits.data)}.bits"
    with write_atomically(path) as file:
        file.write(bits.data)
    return path


def read_flags(path: Path, begin: int, end: int) -> npt.NDArray[np.bool_]:
    """The flags from `begin` to `end` in a file of `write_flags`."""
    bits = np.fromfile(path, np.uint8, count=-(-end // 8) - begin // 8, offset=begin // 8)
    return np.unpackbits(bits)[begin % 8 :][: end - begin].view(np.bool_)
