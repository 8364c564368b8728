"""Keep masks: one bit per line of a shard that says whether the document stays.

A mask describes the result of deduplication without rewriting the shard: 7 million documents take 0.9 MB. The file is a
line of JSON, the `MaskHeader`, followed by the bits: document i is kept if bit i mod 8 (the lowest first) of byte
i div 8 is set. The bits of bad lines, of blank lines and after the last line are 0.

A mask belongs to one shard, which it identifies by its fingerprint. A checksum detects damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from pilekit import __version__
from pilekit.artifacts.atomic_write import write_atomically
from pilekit.checked import reason_of_damage
from pilekit.errors import PilekitError, visible
from pilekit.shards.fingerprint import Fingerprint

FORMAT = 1
KIND = "keep mask"
SUFFIX = ".mask"

_LONGEST_HEADER = 1 << 20

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class MaskHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a mask."""

    format: int
    """Version of the mask's layout."""
    pilekit: str
    """Version of pilekit that wrote it."""
    kind: str
    shard: str
    """The shard's name."""
    size: Count
    """With `sample`, the fingerprint of the shard."""
    sample: str
    lines: Count
    kept: Count
    """The number of documents that stay."""
    sum: str
    """xxh3_64 of the bits, in hexadecimal."""


@dataclass(frozen=True)
class KeepMask:
    """A mask: its header, and the bits, uint8 [lines / 8, rounded up]."""

    header: MaskHeader
    bits: npt.NDArray[np.uint8]

    def keeps(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Whether the documents with these numbers stay; bool [numbers]."""
        kept: npt.NDArray[np.bool_] = numbers < self.header.lines
        places = numbers[kept].astype(np.int64)
        kept[kept] = self.bits[places >> 3] >> (places & 7).astype(np.uint8) & 1 == 1
        return kept

    def unpacked(self) -> npt.NDArray[np.bool_]:
        """One bool for each line."""
        return np.unpackbits(self.bits, count=self.header.lines, bitorder="little").view(np.bool_)

    def fits(self, now: Fingerprint) -> bool:
        """Whether it was made for the shard with this fingerprint."""
        return (self.header.size, self.header.sample) == (now.size, now.sample)


def write_mask(path: Path, shard: str, of: Fingerprint, kept: npt.NDArray[np.bool_]) -> None:
    """Write the mask of the shard with this name and the fingerprint `of`; `kept` is bool [lines]."""
    bits = np.packbits(kept, bitorder="little")
    header = MaskHeader(
        format=FORMAT,
        pilekit=__version__,
        kind=KIND,
        shard=shard,
        size=of.size,
        sample=of.sample,
        lines=len(kept),
        kept=int(np.count_nonzero(kept)),
        sum=xxhash.xxh3_64_hexdigest(bits.data),
    )
    with write_atomically(path) as file:
        file.write(msgspec.json.encode(header) + b"\n")
        file.write(bits.data)


def read_mask(path: str | Path) -> KeepMask:
    """Read a mask; `PilekitError` if the file is not a mask, is damaged, or has another format."""
    shown = visible(path)
    try:
        with Path(path).open("rb") as file:
            line = file.readline(_LONGEST_HEADER)
            bits = np.frombuffer(file.read(), dtype=np.uint8)
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PilekitError(f"{shown}: is a keep mask that cannot be read: {why}") from error
    try:
        header = msgspec.json.decode(line, type=MaskHeader)
        if header.kind != KIND:
            raise ValueError("it is of another kind")
    except (msgspec.DecodeError, ValueError) as error:
        raise PilekitError(f"{shown}: is not a keep mask ({reason_of_damage(error)})") from error
    if header.format != FORMAT:
        raise PilekitError(
            f"{shown}: is a keep mask of format {header.format}, this pilekit {__version__} reads format {FORMAT}; "
            "make it again"
        )
    if (
        len(bits) != -(-header.lines // 8)
        or header.sum != xxhash.xxh3_64_hexdigest(bits.data)
        or header.kept != np.bitwise_count(bits).sum(dtype=np.int64)
    ):
        raise PilekitError(f"{shown}: is damaged (its bits do not match its header); make it again")
    return KeepMask(header, bits)
