"""The metadata of an index: the header and the frames of the whole shard, as key-value pairs of a Parquet file.

    pilekit          the `IndexHeader`, JSON
    pilekit.frames   `Frames`: four rows of little-endian int64, each as its differences, zstd, base64
    pilekit.sum      xxh3_64 of the two values above

The index is sealed (artifacts/sealed.py). A forged index may have a right sum. So frames are plain numbers that need no
parser, their size is bounded before they are unpacked, and contradicting numbers are refused.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.errors import PilekitError
from pilekit.shards.read.open import Storage
from pilekit.shards.read.read_errors import LISTED_BAD_LINES

ROWS_PER_GROUP = 100_000
MOST_FRAMES = 1 << 23
"""The whole Pile has 1.3 million frames of 1 MiB."""

FRAMES_KEY = b"pilekit.frames"

Int64 = npt.NDArray[np.int64]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True, eq=False)
class Frames:
    """Where reading can begin; int64 arrays, [frames].

    For zstd these are its frames, for a plain file marks about every MiB (at a line's beginning), for gzip the
    beginning of the file, for Parquet its row groups.

    offset        the stored byte where the frame begins; for Parquet the number of the row group
    text_offset   decompressed bytes before the frame; for Parquet as its metadata states
    line          number of the first line that begins in the frame or, if none does, in a later frame
    line_at       decompressed bytes of the frame before that line begins; the frame's size, if no line begins
    """

    offset: Int64
    text_offset: Int64
    line: Int64
    line_at: Int64

    def __len__(self) -> int:
        return len(self.offset)

    def frame_of(self, line: int) -> int:
        """The number of the frame in which this line begins; -1 if there are no frames."""
        # A frame in which no line begins has the number of the next line: the last of equal numbers is right.
        return int(self.line.searchsorted(line, side="right")) - 1


class IndexDamage(PilekitError):
    """The file is no index or is damaged; reading the shard itself gives the same facts."""


INDEX = SealedKind("an index", 1, "remove it, and make it again with `pilekit index`", IndexDamage)


class IndexHeader(SealedHeader, frozen=True, kw_only=True):
    """The index's facts about the whole shard; unknown fields, from a later pilekit with this format, are ignored."""

    storage: Storage
    text_field: str
    label_path: str
    size: Count
    """With `sample`, the fingerprint of the shard."""
    sample: str
    lines: Count
    """Bad and blank lines included; every document number is less."""
    documents: Count
    text_bytes: Count
    """UTF-8 bytes of all texts."""
    content_bytes: Count
    """Decompressed bytes; for Parquet as its metadata states."""
    content_hash: str
    """xxh3_128 of the decompressed bytes in hexadecimal; "" for Parquet."""
    skipped: Count
    """Bad lines passed over."""
    examples: list[tuple[Count, str]]
    """The first bad lines: (line counted from 1, reason)."""
    subsets: list[str]
    """The labels of its documents as the records spell them, sorted."""


def index_metadata(header: IndexHeader, frames: Frames) -> dict[bytes, bytes]:
    """The key-value metadata of an index."""
    rows = np.stack([getattr(frames, column.name) for column in fields(Frames)])
    packed = zstandard.ZstdCompressor(level=9).compress(np.diff(rows, prepend=0).astype("<i8").tobytes())
    return INDEX.metadata(header, {FRAMES_KEY: base64.b64encode(packed)})


def read_metadata(path: str, values: Mapping[bytes, bytes], groups: list[int]) -> tuple[IndexHeader, Frames]:
    """Header and frames of the index at `path` with this metadata; `groups` are the rows of each row group.

    Raises `IndexDamage`, also for an index of another format.
    """
    header = INDEX.open_metadata(path, values, IndexHeader, FRAMES_KEY)
    try:
        frames = _decode_frames(values[FRAMES_KEY])
        _check(header, frames, groups)
    except (zstandard.ZstdError, ValueError) as error:
        raise INDEX.damaged(path, error) from error
    return header, frames


def _decode_frames(text: bytes) -> Frames:
    packed = base64.b64decode(text, validate=True)
    # A kilobyte may unpack to gigabytes; zstd enforces the claimed size.
    size = zstandard.frame_content_size(packed)
    if size % 32 or not 0 <= size <= 32 * MOST_FRAMES:
        raise ValueError("the size of its frames is impossible")
    data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    with np.errstate(over="ignore"):
        rows = np.cumsum(np.frombuffer(data, dtype="<i8").reshape(4, -1), axis=1, dtype=np.int64)
    return Frames(*rows)


def _check(header: IndexHeader, frames: Frames, groups: list[int]) -> None:
    """Raise `ValueError` for numbers that no shard can have; `groups` are the rows of each row group."""
    if any(not 0 < rows <= ROWS_PER_GROUP for rows in groups):
        raise ValueError("its row groups have impossible sizes")
    if sum(groups) != header.documents or header.documents + header.skipped > header.lines:
        raise ValueError("it has another number of documents than it says")
    if len(header.examples) != min(header.skipped, LISTED_BAD_LINES):
        raise ValueError("it lists more or fewer bad lines than there are")
    if not len(frames):
        if header.storage == "parquet":  # It may have no row group.
            return
        raise ValueError("it has no frames")
    # Compared and not subtracted: the difference of forged numbers may overflow.
    apart = bool(np.all(frames.offset[1:] != frames.offset[:-1]))
    begin = frames.text_offset[0] == 0 and frames.line[0] == 0
    in_order = _within(frames.offset, max(header.size - 1, 0)) and _within(frames.text_offset, header.content_bytes)
    if not (apart and begin and in_order and _within(frames.line, header.lines)):
        raise ValueError("its frames have impossible places")
    sizes = np.diff(frames.text_offset, append=header.content_bytes)
    if bool(np.any((frames.line_at < 0) | (frames.line_at > sizes))):
        raise ValueError("its frames have impossible beginnings")


def _within(values: Int64, highest: int) -> bool:
    """Whether the values, int64 [frames], never fall and are between 0 and `highest`."""
    return bool(values[0] >= 0 and np.all(values[1:] >= values[:-1]) and values[-1] <= highest)
