"""Scratch space: how much of it a run needs, arrays in unnamed files, and flags in files that all nodes read.

Bytes on disk:

    sketches    24 a document and 8 for each band: 192 with 21 bands
    matching    up to 96 a document: keys that occur twice, pairs, names and decisions
    sets        1.4 for each byte of text of the documents that may have a duplicate, and 8 for each document
    clean       as much as the shards take now, plus 3 %; scratch files are removed first

All but the sets are estimated before the first step, for documents of 2 KB as stored, as in the Pile. The number of
candidates is known after matching, so the sets are checked then.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.free_disk import scratch_errors

STORED_BYTES_PER_DOCUMENT = 2000


def bytes_needed(stored_bytes: int, bands: int, *, clean: bool) -> int:
    """The most bytes that shards of this size need: sketches, then files for matching, then clean shards."""
    documents = stored_bytes // STORED_BYTES_PER_DOCUMENT
    return documents * (24 + 8 * bands) + max(96 * documents, int(1.03 * stored_bytes) * clean)


def set_bytes(text_bytes: int, documents: int) -> int:
    """Size of the shingle sets of candidates with this much text, in a corpus of this many documents."""
    return int(1.4 * text_bytes) + 8 * documents


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
