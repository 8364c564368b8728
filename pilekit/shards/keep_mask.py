"""Keep masks: one bit per line of a shard that says whether the document stays.

A mask describes the result of deduplication without rewriting the shard: 7 million documents take 0.9 MB. The file is
sealed (artifacts/sealed.py): a line of JSON, the `MaskHeader`, followed by the bits. Document i is kept if bit i mod 8
(the lowest first) of byte i div 8 is set. The bits of bad lines, of blank lines and after the last line are 0.

A mask belongs to one shard, which it identifies by its fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from pilekit.artifacts.sealed import SealedHeader, SealedKind
from pilekit.shards.fingerprint import Fingerprint

MASK = SealedKind("a keep mask", 2, "run `pilekit dedup` again, into another folder")
SUFFIX = ".mask"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class MaskHeader(SealedHeader, frozen=True, kw_only=True):
    """The first line of a mask."""

    shard: str
    """The shard's name."""
    size: Count
    """With `sample`, the fingerprint of the shard."""
    sample: str
    lines: Count
    kept: Count
    """The number of documents that stay."""


@dataclass(frozen=True)
class KeepMask:
    """A mask: its header, and the bits, uint8 [lines / 8, rounded up]."""

    header: MaskHeader
    bits: npt.NDArray[np.uint8]

    def keeps(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Whether the documents with these numbers stay; bool [numbers]."""
        keep_mask: npt.NDArray[np.bool_] = numbers < self.header.lines
        places = numbers[keep_mask].astype(np.int64)
        keep_mask[keep_mask] = self.bits[places >> 3] >> (places & 7).astype(np.uint8) & 1 == 1
        return keep_mask

    def unpacked(self) -> npt.NDArray[np.bool_]:
        """One bool for each line."""
        return np.unpackbits(self.bits, count=self.header.lines, bitorder="little").view(np.bool_)

    def fits(self, now: Fingerprint) -> bool:
        """Whether it was made for the shard with this fingerprint."""
        return (self.header.size, self.header.sample) == (now.size, now.sample)


def write_mask(path: Path, shard: str, fingerprint: Fingerprint, keep_mask: npt.NDArray[np.bool_]) -> None:
    """Write the mask of the shard with this name and `fingerprint`; `keep_mask` is bool [lines]."""
    bits = np.packbits(keep_mask, bitorder="little")
    header = MaskHeader(
        format=MASK.format,
        shard=shard,
        size=fingerprint.size,
        sample=fingerprint.sample,
        lines=len(keep_mask),
        kept=int(np.count_nonzero(keep_mask)),
    )
    MASK.write(path, header, bits)


def read_mask(path: str | Path) -> KeepMask:
    """Read a mask; `PilekitError` if the file is not a mask, is damaged, or has another format."""
    header, bits = MASK.read(path, MaskHeader)
    if len(bits) != -(-header.lines // 8) or header.kept != np.bitwise_count(bits).sum(dtype=np.int64):
        raise MASK.damaged(path, "its bits do not match its header")
    return KeepMask(header, bits)
