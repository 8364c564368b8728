"""`Sample`: a seeded share of the documents, the same one whoever asks.

A document is kept if a 64-bit hash of (seed, shard name, document number) lies below `fraction` of the hash's range. So
the choice depends on no order, batch, rank or worker, survives recompressing the shard, and is nested: with one seed, a
smaller fraction keeps a subset of what a larger one keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible
from pilekit.pipeline.pipeline import DocumentStage


def document_hashes(shard: str, numbers: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """The hash of (seed, shard, number) of each document, uint64 [documents], uniform over the 64 bits."""
    # NUL cannot occur in a file's name, so no two identities are spelt alike.
    prefix = f"{seed}\0{shard}\0".encode("utf-8", "surrogateescape")
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(b"%s%d" % (prefix, number)) for number in numbers.tolist()), np.uint64, len(numbers))


@dataclass(frozen=True)
class Sample(DocumentStage):
    """Keep about `fraction` (0 to 1) of the documents, chosen by hash of `seed` and document identity."""

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, int | float) or not 0 <= self.fraction <= 1:
            raise PilekitError(f"Sample: the fraction must lie between 0 and 1, not {visible(repr(self.fraction), 80)}")

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The chosen documents; batches without any are dropped."""
        limit = int(self.fraction * 2**64)
        for batch in batches:
            # As Python integers: the limit of fraction 1 is 2^64, which uint64 cannot hold.
            hashes = document_hashes(batch.shard, batch.numbers, self.seed).tolist()
            kept = batch.where([value < limit for value in hashes])
            if len(kept):
                yield kept
